"""Backwards that raise whatever is passed, beside guessed arguments; and what lacks a package."""

import torch
from torch.autograd import Function

try:
    import fancy_package_nowhere
except ImportError:
    pass


class TwoOutputs(Function):
    """Wrong: backward takes one grad_output of two"""
    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(x, index)
        return x[index] * 2, x * 3

    @staticmethod
    def backward(ctx, g):
        return 2 * g, None


class TooMany(Function):
    """Wrong: two expected, one comes"""
    @staticmethod
    def forward(ctx, x, act):
        ctx.act = act
        return act(x)

    @staticmethod
    def backward(ctx, g, h):
        return g, None


class Unbound(Function):
    """Wrong: a name bound nowhere"""
    @staticmethod
    def forward(ctx, x, f, n=3):
        ctx.save_for_backward(x)
        return f(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * scael, None, None


class InHelper(Function):
    """Wrong: a helper that does not exist"""
    @staticmethod
    def forward(ctx, x, mask):
        ctx.save_for_backward(x, mask)
        return x * mask

    @staticmethod
    def backward(ctx, g):
        return helper(g, ctx), None


def helper(g, ctx):
    return g * ctx.saved_tensors[1] * torc.ones(())


class Lacking(Function):
    """A package is missing here."""
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        import fancy_package_nowhere
        return fancy_package_nowhere.double(g)


class LackingAtTop(Function):
    """A package is missing here."""
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return fancy_package_nowhere.double(g)


class PerItem(Function):
    """Right for two items, which is how it is used."""

    @staticmethod
    def forward(ctx, *xs):
        return tuple(2 * x for x in xs)

    @staticmethod
    def backward(ctx, g, h):
        return 2 * g, 2 * h
