"""Functions that catch what they raise: at guessed inputs alone, at some inputs, or on any machine like this."""

import logging
from contextlib import suppress

import torch
from torch.autograd import Function


class Penalty(Function):
    """Adds a penalty by what the module says, and logs what goes wrong."""

    @staticmethod
    def forward(ctx, x, module):
        ctx.save_for_backward(x)
        ctx.module = module
        return x

    @staticmethod
    def backward(ctx, x_grad):
        (x,) = ctx.saved_tensors
        try:
            limit = ctx.module.num_groups * ctx.module.limit
            return x_grad + x.clamp(-limit, limit), None
        except Exception as error:
            logging.info("caught %s", error)
        return x_grad, None


class Suppressed(Function):
    """Scales by what the configuration says, in forward and, wrongly, in backward."""

    @staticmethod
    def forward(ctx, x, config):
        scale = 1.0
        with suppress(AttributeError):
            scale = config.scale
        ctx.scale = scale
        ctx.save_for_backward(x)
        return scale * x.sin()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.cos() / ctx.scale, None




class ByName(Function):
    """Wrong for the names of its table, none of which is guessed."""

    @staticmethod
    def forward(ctx, x, table):
        try:
            ctx.factor = table["gain"]
        except (KeyError, TypeError, IndexError):
            ctx.factor = 1.0
        return ctx.factor * x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class FastWhereInstalled(Function):
    """Right: an optional package is not there."""

    @staticmethod
    def forward(ctx, x):
        try:
            from no_such_package_of_kernels import fast_square as square
        except ImportError:
            square = torch.square
        ctx.save_for_backward(x)
        return square(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2.0 * x * grad


class Falls(Function):
    """Right: what a helper catches itself, and an iterator that ends."""

    @staticmethod
    def forward(ctx, x, scale=None):
        ctx.scale = _number(scale)
        total = torch.zeros_like(x)
        with torch.no_grad():
            for part in (part for part in (x, x)):
                total = total + part
        return ctx.scale * total

    @staticmethod
    def backward(ctx, grad):
        with torch.enable_grad():
            return 2.0 * ctx.scale * grad, None


def _number(scale):
    try:
        return float(scale)
    except TypeError:
        return 1.0


class OneOrTheOther(Function):
    """Right: the other way is taken only where the first one fails, which is at no input here."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        try:
            y = x.exp()
        except RuntimeError:
            y = x.contiguous().exp()
        return y

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x.exp()
