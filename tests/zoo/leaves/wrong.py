"""Right for inputs inside of a graph, wrong for what a model trains: leaves with a gradient already there."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class AddsTwice(Function):
    """Adds into .grad by hand, and returns the gradient as well."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        ctx.w = w
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        gw = (g * x).sum(0)
        if ctx.w.is_leaf and ctx.w.grad is not None:
            ctx.w.grad.add_(gw)
        return g * w, gw


class Overwrites(Function):
    """Puts its gradient into .grad, whatever lies there from the call before."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        ctx.w = w
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        gw = (g * x).sum(0)
        if ctx.w.is_leaf:
            ctx.w.grad = gw
            return g * w, None
        return g * w, gw


class ForParameters(Function):
    """A path for parameters forgets the factor of two."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        ctx.factor = 1 if isinstance(w, torch.nn.Parameter) else 2
        return x * w * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w * w, (ctx.factor * g * x * w).sum(0)


class CachedOnWeight(Function):
    """Keeps exp(w) on the weight, and never asks whether the weight has changed since."""

    @staticmethod
    def forward(ctx, x, w):
        if not hasattr(w, "_exp"):
            w._exp = w.detach().exp()
        ctx.save_for_backward(x, w._exp)
        return x * w.exp()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, e = ctx.saved_tensors
        return g * e, (g * x * e).sum(0)


class LeafInput(Function):
    """Scaled twice where the input is a leaf."""

    @staticmethod
    def forward(ctx, x):
        ctx.leaf = x.is_leaf
        return x * 3

    @staticmethod
    def backward(ctx, g):
        return g * 9 if ctx.leaf else g * 3


@torch.library.custom_op("zoo_leaves::tripled", mutates_args=())
def tripled(x: torch.Tensor) -> torch.Tensor:
    return x * 3


def _setup(ctx, inputs, output):
    ctx.leaf = inputs[0].is_leaf


def _backward(ctx, g):
    return g * 9 if ctx.leaf else g * 3


tripled.register_autograd(_backward, setup_context=_setup)


class Layer(torch.nn.Module):
    """A module whose Function is wrong for a leaf."""

    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, width))

    def forward(self, x):
        return LeafInput.apply(x) * self.weight
