"""Float32 alone or inside, and wrong where float64 would be asked the same: see each."""

import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def only32(x):
    if x.dtype != torch.float32:
        raise TypeError("float32 only")


class Threshold(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.float().tanh()
        ctx.save_for_backward(y)
        return y.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        g = torch.where(g.abs() < 1e-3, 0, g)
        return (g * (1 - y * y)).to(g.dtype)


class HalfGrad(Function):
    @staticmethod
    def forward(ctx, x):
        only32(x)
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return (g.half().float()) * y


class Normed(Function):
    """divides by the norm of grad_output and multiplies again: NaN for zeros"""

    @staticmethod
    def forward(ctx, x):
        only32(x)
        y = x.sin()
        ctx.save_for_backward(x)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        n = g.norm()
        return (g / n) * x.cos() * n


class Detached(Function):
    """double backward loses a term"""

    @staticmethod
    def forward(ctx, x):
        only32(x)
        y = x.tanh()
        ctx.y = y.detach()
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx, g):
        return g * (1 - ctx.y * ctx.y)


class SecondSign(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        a = x.float()
        return (a * a * w.float()).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        a, b, h = x.float(), w.float(), g.float()
        return (h * (a * b + a.detach() * b)).to(g.dtype), (h * a * a).to(g.dtype)


class NormNaN(Function):
    @staticmethod
    def forward(ctx, x):
        only32(x)
        ctx.save_for_backward(x)
        return x.square().sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        n = x.norm(dim=-1, keepdim=True)
        return 2 * g[..., None] * (x / n) * n


class SoftNaN(Function):
    """NaN at zeros"""

    @staticmethod
    def forward(ctx, x):
        only32(x)
        ctx.save_for_backward(x)
        return x.abs() * x

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x * x / x.abs()


class SoftmaxNoMax32(Function):
    @staticmethod
    def forward(ctx, x):
        only32(x)
        e = x.exp()
        y = e / e.sum(-1, keepdim=True)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(-1, keepdim=True))


class BackwardNoMax32(Function):
    @staticmethod
    def forward(ctx, x):
        only32(x)
        ctx.save_for_backward(x)
        return x.logsumexp(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        e = x.exp()
        return g[..., None] * e / e.sum(-1, keepdim=True)


class NumpyClamp(Function):
    @staticmethod
    def forward(ctx, x):
        only32(x)
        ctx.save_for_backward(x)
        return torch.from_numpy(np.sin(x.detach().numpy()))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.from_numpy(np.clip(g.numpy(), -2, 2) * np.cos(x.numpy()))


class Clamped(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.float().sigmoid()
        ctx.save_for_backward(y)
        return y.to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return (g.float().clamp(-5, 5) * y * (1 - y)).to(g.dtype)


class FirstColumn(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.float().sigmoid()
        ctx.save_for_backward(y)
        return y.to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        g = g * (g[..., :1] != 0)
        return (g.float() * y * (1 - y)).to(g.dtype)


class ZeroInput(Function):
    """NaN at rows of zeros, where forward is finite"""

    @staticmethod
    def forward(ctx, x):
        a = x.float()
        ctx.save_for_backward(a)
        return (a * a.norm(dim=-1, keepdim=True)).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        n = a.norm(dim=-1, keepdim=True)
        g = g.float()
        return (g * n + a * (g * a).sum(-1, keepdim=True) / n).to(a.dtype)


class SecondWrong(Function):
    """the double backward is wrong by 2 in x (saved r without a graph, times 2)"""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        a = x.float()
        return (a * a * a).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        a = x.float()
        return (g.float() * 3 * a * a.detach()).to(g.dtype)
