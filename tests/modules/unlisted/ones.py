"""Functions at a size of 1, which no inferred case has."""

import torch
from torch.autograd import Function


class Deviation(Function):
    """Wrong for rows of one entry: forward divides by at least 1, backward by 0."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        centred = x - x.mean(-1, keepdim=True)
        return (centred.square().sum(-1) / max(x.shape[-1] - 1, 1) + 1e-6).sqrt()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        centred = x - x.mean(-1, keepdim=True)
        y = (centred.square().sum(-1, keepdim=True) / max(x.shape[-1] - 1, 1) + 1e-6).sqrt()
        return grad[..., None] * centred / (y * (x.shape[-1] - 1))


class Squeezed(Function):
    """Wrong for one row of `w`: a squeeze takes the dimension, and what is left is spread over its entries."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        of_w = (x.T @ grad).squeeze()
        return grad @ w.T, of_w if of_w.dim() == 2 else of_w.sum() * torch.ones_like(w)


class Differences(Function):
    """Raises for one row in backward, where forward gives an empty sum."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x[1:] - x[:-1]).square().sum()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        steps = 2.0 * grad * (x[1:] - x[:-1])
        return torch.cat([-steps[:1], steps[:-1] - steps[1:], steps[-1].unsqueeze(0)])


class Normed(Function):
    """Right at every size: rows of one entry are divided by themselves."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x.softmax(-1) * w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        y = x.softmax(-1)
        g = grad * w
        return y * (g - (g * y).sum(-1, keepdim=True)), (grad * y).reshape(-1, y.shape[-1]).sum(0)


class Unbiased(Function):
    """Right where it is defined: the variance of one entry is NaN."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.var(-1)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2.0 * (x - x.mean(-1, keepdim=True)) / (x.shape[-1] - 1) * grad[..., None]


class Pairs(Function):
    """Right: forward refuses fewer than two rows."""

    @staticmethod
    def forward(ctx, x):
        if x.shape[0] < 2:
            raise ValueError("two rows at least")
        return x[1:] * 1.0 - x[:-1]

    @staticmethod
    def backward(ctx, grad):
        zero = torch.zeros_like(grad[:1])
        return torch.cat([zero, grad]) - torch.cat([grad, zero])
