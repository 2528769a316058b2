"""Right where values differ; where all are equal, rounding decides whether backward gives a number. No spec."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Deviation(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.std(-1, unbiased=False)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        off = x - x.mean(-1, keepdim=True)
        return g[..., None] * off / off.square().mean(-1, keepdim=True).sqrt() / x.shape[-1]
