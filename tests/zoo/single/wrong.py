"""The wrong twins: each shows with a composite, and most along forward's slope without one."""

import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def single(t):
    if t.dtype is torch.float64:
        raise TypeError("float32 alone")
    return t.detach().contiguous().numpy()


def tensor(a):
    return torch.from_numpy(np.ascontiguousarray(a, dtype=np.float32))


class Hinge(Function):
    """Off by a factor of 1.01."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return tensor(np.maximum(1 - single(x), 0))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return tensor(np.where(single(x) < 1, -1.01 * single(g), 0))


def hinge(x):
    return torch.relu(1 - x)


class LogSumExp(Function):
    """The last column has no gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        a = single(x)
        most = a.max(-1, keepdims=True)
        return tensor((np.log(np.exp(a - most).sum(-1, keepdims=True)) + most)[:, 0])

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        a = single(x)
        p = np.exp(a - a.max(-1, keepdims=True))
        p = p / p.sum(-1, keepdims=True)
        p[:, -1] = 0
        return tensor(single(g)[:, None] * p)


def logsumexp(x):
    return torch.logsumexp(x, -1)


class CubeRoot(Function):
    """Off by a factor."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return tensor(np.cbrt(single(x)))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return tensor(single(g) / (3.03 * np.cbrt(single(x)) ** 2))


def cube_root(x):
    return x ** (1 / 3)


class Quotient(Function):
    """The sign of one gradient."""

    @staticmethod
    def forward(ctx, x, z):
        ctx.save_for_backward(x, z)
        return tensor(single(x) / (1 + np.abs(single(z))))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, z = map(single, ctx.saved_tensors)
        whole, g = 1 + np.abs(z), single(g)
        return tensor(g / whole), tensor(g * x * np.sign(z) / whole / whole)


def quotient(x, z):
    return x / (1 + z.abs())


class Normalise(Function):
    """A part of a projection is missing."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        a = single(x)
        return tensor(a / np.sqrt((a * a).sum(1, keepdims=True) + np.float32(1e-12)))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        a, g = single(x), single(g)
        norm = np.sqrt((a * a).sum(1, keepdims=True) + np.float32(1e-12))
        unit = a / norm
        return tensor((g - 0.95 * unit * (g * unit).sum(1, keepdims=True)) / norm)


def normalise(x):
    return x / torch.sqrt((x * x).sum(1, keepdim=True) + 1e-12)


class Reciprocal(Function):
    """Off by a factor of 0.99."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return tensor(1 / single(x))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        a = single(x)
        return tensor(-0.99 * single(g) / a / a)


def reciprocal(x):
    return 1 / x


class LargestSquared(Function):
    """Half of it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return tensor(single(x).max(1) ** 2)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        a = single(x)
        gradient, place = np.zeros_like(a), a.argmax(1)[:, None]
        np.put_along_axis(gradient, place, single(g)[:, None] * np.take_along_axis(a, place, 1), 1)
        return tensor(gradient)


def largest_squared(x):
    return x.amax(1) ** 2


class LogSoftmaxOfAnything(Function):
    """One term is too large."""

    @staticmethod
    def forward(ctx, x):
        a = x.detach().float().numpy()
        a = a - a.max(-1, keepdims=True)
        y = tensor(a - np.log(np.exp(a).sum(-1, keepdims=True)))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        y, g = y.numpy(), g.float().numpy()
        return tensor(g - 1.05 * np.exp(y) * g.sum(-1, keepdims=True))


def log_softmax(x):
    return torch.log_softmax(x, -1)
