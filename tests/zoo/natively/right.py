"""Right, in float32 alone or inside; some twice differentiable, some with zeros or wide ranges."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def only32(x):
    if x.dtype != torch.float32:
        raise TypeError("float32 only")


class Twice(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        a = x.float()
        return (a * a * a).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        a = x.float()
        return (g.float() * 3 * a * a).to(g.dtype)


class LayerNorm(Function):
    @staticmethod
    def forward(ctx, x, w):
        only32(x)
        ctx.save_for_backward(x, w)
        m = x.mean(-1, keepdim=True)
        r = ((x - m).square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        return (x - m) * r * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        m = x.mean(-1, keepdim=True)
        r = ((x - m).square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        h = (x - m) * r
        a = g * w
        dx = r * (a - a.mean(-1, keepdim=True) - h * (a * h).mean(-1, keepdim=True))
        return dx, (g * h).sum(0)


class Softmax(Function):
    @staticmethod
    def forward(ctx, x):
        only32(x)
        y = x.softmax(-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(-1, keepdim=True))


class Norm(Function):
    """0 at rows of zeros, a kink"""

    @staticmethod
    def forward(ctx, x):
        only32(x)
        n = x.norm(dim=-1, keepdim=True)
        ctx.save_for_backward(x, n)
        return n[..., 0]

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, n = ctx.saved_tensors
        return g[..., None] * torch.where(n > 0, x / n, torch.zeros_like(x))


class Sqrt(Function):
    """infinite slope at a zero"""

    @staticmethod
    def forward(ctx, x):
        only32(x)
        y = x.sqrt()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g / (2 * y)
