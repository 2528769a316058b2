"""The larger one of two inputs, without a spec: nothing says whether these may be equal."""

import torch
from torch.autograd import Function


class Larger(Function):
    """All of the gradient goes to the first where both are equal."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return torch.maximum(x, y)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * (x >= y), g * (x < y)


class LargerTwice(Function):
    """Both get all of it."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return torch.maximum(x, y)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * (x >= y), g * (y >= x)
