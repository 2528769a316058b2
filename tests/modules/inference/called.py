"""What calls tell: names behind `*args`, a module with its parameters."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Scaled(Function):
    """Wrong: the gradient of `weight` lacks the factor."""

    @staticmethod
    def forward(ctx, *args):
        x, weight, alpha = args
        ctx.save_for_backward(x, weight)
        ctx.alpha = alpha
        return x * weight * alpha

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g * weight * ctx.alpha, g * x, None


def scaled(x, weight, alpha=0.5):
    return Scaled.apply(x, weight, alpha)


class Euler(Function):
    """Right: differentiates by parameters that are those of the module."""

    @staticmethod
    def forward(ctx, func, y, start, stop, *params):
        ctx.func, ctx.step = func, stop - start
        ctx.save_for_backward(y, *params)
        return y + ctx.step * func(y)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        y, *params = ctx.saved_tensors
        with torch.enable_grad():
            y = y.detach().requires_grad_()
            z = y + ctx.step * ctx.func(y)
        gy, *gp = torch.autograd.grad(z, (y, *params), g, allow_unused=True)
        return None, gy, None, None, *gp
