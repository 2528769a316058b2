"""Wrong for one value of an option, which runs at few inputs, or is one of many values."""

import torch
from torch.autograd import Function


class DropOverTime(Function):
    """One mask for all time steps, for three dimensions alone; backward leaves it out."""

    @staticmethod
    def forward(ctx, x, p=0.5, training=False):
        y = x.clone()
        if training:
            noise = x.data.new(x.size(-2), x.size(-1)).bernoulli_(1 - p).div_(1 - p)
            y.mul_(noise.unsqueeze(0).expand_as(x))
        return y

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None, None


class Grouped(Function):
    """Rows in groups of 7."""

    @staticmethod
    def forward(ctx, x, grouped=False):
        ctx.grouped = grouped
        if grouped:
            return (2 * x.view(-1, 7, x.shape[-1])).flatten(0, 1)
        return 3 * x

    @staticmethod
    def backward(ctx, grad_output):
        return (grad_output if ctx.grouped else 3 * grad_output), None


class Symmetric(Function):
    """Square matrices alone."""

    @staticmethod
    def forward(ctx, x, symmetric=False):
        ctx.symmetric = symmetric
        return x + x.T if symmetric else 2 * x

    @staticmethod
    def backward(ctx, grad_output):
        return (grad_output if ctx.symmetric else 2 * grad_output), None


class SeventhMode(Function):
    """The last of many modes."""

    @staticmethod
    def forward(ctx, x, mode="a"):
        ctx.factor = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0, "e": 5.0, "f": 6.0, "g": 7.0}[mode]
        return ctx.factor * x

    @staticmethod
    def backward(ctx, grad_output):
        return (ctx.factor if ctx.factor < 7 else 1.0) * grad_output, None


class Mode(Function):
    """In training, which has no default."""

    @staticmethod
    def forward(ctx, x, training):
        ctx.training = training
        return 2 * x if training else 3 * x

    @staticmethod
    def backward(ctx, grad_output):
        return (grad_output if ctx.training else 3 * grad_output), None


class AlongThird(Function):
    """Along the third dimension, which the guessed inputs do not have."""

    @staticmethod
    def forward(ctx, x, dim=-1):
        ctx.shape, ctx.dim = x.shape, dim
        return x.sum(dim)

    @staticmethod
    def backward(ctx, grad_output):
        if ctx.dim == 2:
            return torch.ones(ctx.shape, dtype=grad_output.dtype), None
        return grad_output.unsqueeze(ctx.dim).expand(ctx.shape), None


TABLE = {(117, 3): 5.0}


class Unknown(Function):
    """At one shape that nobody finds."""

    @staticmethod
    def forward(ctx, x, fancy=False):
        return x * TABLE[x.shape] if fancy else 2 * x

    @staticmethod
    def backward(ctx, grad_output):
        return 2 * grad_output, None


class FromTheFirstRow(Function):
    """Scales by the rows of a table from a start on, which backward forgets."""

    @staticmethod
    def forward(ctx, x, table, start=0):
        ctx.save_for_backward(table)
        return x * table[start : start + x.shape[0]]

    @staticmethod
    def backward(ctx, grad):
        (table,) = ctx.saved_tensors
        return grad * table[: grad.shape[0]], None, None


class SumForgotten(Function):
    """Whatever is not the mean is the sum, whose gradient is the mean's."""

    @staticmethod
    def forward(ctx, x, y, reduction="mean"):
        ctx.save_for_backward(x, y)
        loss = (x - y) ** 2
        return loss.mean() if reduction == "mean" else loss.sum()

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        of_x = 2 * g * (x - y) / x.numel()
        return of_x, -of_x, None
