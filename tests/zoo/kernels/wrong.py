"""Memory that nobody wrote, and blocks whose rest is forgotten; gradcheck passes at small sizes."""

import torch
from torch.autograd import Function

BLOCK = 64


class FirstNotWritten(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        grad = torch.empty_like(g)
        grad[1:] = 2 * g[1:]
        return grad


class MaskedNotWritten(Function):
    """Zeros are meant where nothing is written, and often are there."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp_min(0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        grad = torch.empty_like(g)
        grad[x > 0] = g[x > 0]
        return grad


class LastOutputNotWritten(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.empty(x.shape[0] + 1, dtype=x.dtype)
        y[:-1] = 2 * x
        return y

    @staticmethod
    def backward(ctx, g):
        return 2 * g[:-1]


class RestOfTheBlock(Function):
    """Whole blocks alone, but for a first one that is cut short."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        grad = torch.zeros_like(x)
        for start in range(0, max(x.shape[-1] - BLOCK + 1, 1), BLOCK):
            part = slice(start, start + BLOCK)
            grad[..., part] = 2 * x[..., part] * g[..., part]
        return grad


class NothingCarried(Function):
    """A cumulative sum by blocks, whose backward forgets what later blocks hand to earlier ones."""

    @staticmethod
    def forward(ctx, x, chunk=32):
        ctx.chunk = chunk
        return x.cumsum(dim=0)

    @staticmethod
    def backward(ctx, g):
        parts = [p.flip(0).cumsum(dim=0).flip(0) for p in g.split(ctx.chunk)]
        return torch.cat(parts), None


class OtherAlgorithm(Function):
    """Two branches on a size; the one for large ones has another constant."""

    @staticmethod
    def forward(ctx, x):
        return 3 * x

    @staticmethod
    def backward(ctx, g):
        if g.numel() > 100:
            return g + g
        return 3 * g


class RoundedUp(Function):
    """Padded to a power of two with ones, which enter the sum."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sum()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        lanes = 1 << (x.numel() - 1).bit_length()
        products = torch.cat([g * x, torch.ones(lanes - x.numel(), dtype=x.dtype)])
        return g * x.sum() + products.sum()
