"""Functions without a spec whose inputs nobody would guess: the module beside them passes them."""

import torch
from torch import nn
from torch.autograd import Function


class Normed(Function):
    """A shape as a tuple among its arguments."""

    @staticmethod
    def forward(ctx, x, weight, shape, eps):
        var = x.var(tuple(range(-len(shape), 0)), unbiased=False, keepdim=True)
        y = torch.nn.functional.layer_norm(x, shape, None, None, eps)
        ctx.save_for_backward(y, weight, (var + eps).rsqrt())
        ctx.over = tuple(range(x.dim() - len(shape)))
        ctx.last = tuple(range(-len(shape), 0))
        return y * weight

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        y, w, r = ctx.saved_tensors
        gy = g * w
        mean, along = gy.mean(ctx.last, keepdim=True), (gy * y).mean(ctx.last, keepdim=True)
        return r * (gy - mean - y * along), (g * y).sum(ctx.over), None, None


class Norm(nn.Module):
    def __init__(self, features, eps=1e-5):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(features)), eps

    def forward(self, x):
        return Normed.apply(x, self.weight, (x.shape[-1],), self.eps)


class Forgetful(Normed):
    """The mean of gy is forgotten."""

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        y, w, r = ctx.saved_tensors
        gy = g * w
        along = (gy * y).mean(ctx.last, keepdim=True)
        return r * (gy - y * along), (g * y).sum(ctx.over), None, None


forgetful = Forgetful.apply


class ForgetfulNorm(nn.Module):
    """Calls it by another name, in a helper."""

    def __init__(self, features: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x):
        return _applied(x, self.weight)


def _applied(x, weight):
    return forgetful(x, weight, (x.shape[-1],), 1e-5)
