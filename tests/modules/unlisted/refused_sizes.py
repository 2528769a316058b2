"""Functions whose backward fails at most of the sizes that forward accepts, and some that go with every size."""

import torch
from torch.autograd import Function


class Halves(Function):
    """Wrong for an odd length: the gradient is an entry too short, and refused."""

    @staticmethod
    def forward(ctx, x):
        return x[..., : x.shape[-1] // 2 * 2].unflatten(-1, (-1, 2)).sum(-1)

    @staticmethod
    def backward(ctx, grad):
        return grad.repeat_interleave(2, -1)


class Pooled(Function):
    """Wrong for an even length: what the last window does not reach is missing."""

    @staticmethod
    def forward(ctx, x):
        return x.unfold(-1, 3, 2).sum(-1)

    @staticmethod
    def backward(ctx, grad):
        given = grad.new_zeros(*grad.shape[:-1], 2 * grad.shape[-1] + 1)
        for k in range(3):
            given[..., k : k + 2 * grad.shape[-1] : 2] += grad
        return given


class Thirds(Function):
    """Wrong but for multiples of three: backward reshapes what does not fit."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return (2.0 * x * grad).reshape(3, -1).reshape(x.shape)


class Doubled(Function):
    """Right at every size."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return torch.nn.functional.conv1d(x, w)

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        of_w = torch.nn.grad.conv1d_weight(x, w.shape, grad)
        return torch.nn.functional.conv_transpose1d(grad, w), of_w


class Paired(Function):
    """Right: forward refuses an odd length."""

    @staticmethod
    def forward(ctx, x):
        return x.unflatten(-1, (-1, 2)).sum(-1)

    @staticmethod
    def backward(ctx, grad):
        return grad.repeat_interleave(2, -1)


class Summed(Function):
    """Right where both have one length, and backward refuses others by itself."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return (x.sum(0) * scale[: x.shape[1]]).sum()

    @staticmethod
    def backward(ctx, grad):
        x, scale = ctx.saved_tensors
        if scale.shape[0] != x.shape[1]:
            raise ValueError("as many scales as columns")
        return (grad * scale).expand_as(x).clone(), grad * x.sum(0)


class Biased(Function):
    """Right for a bias of one row: a gradient of that shape is refused where it has as many as `x`."""

    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w)
        return x @ w + b

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w.T, x.T @ grad, grad.sum(0, keepdim=True)


class Rotated(Function):
    """Right: the angles are of half the length, which forward broadcasts where both lengths are 2."""

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    @staticmethod
    def backward(ctx, grad):
        cos, sin = ctx.saved_tensors
        a, b = grad.chunk(2, -1)
        return torch.cat([a * cos + b * sin, b * cos - a * sin], -1), None, None
