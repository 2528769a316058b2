"""Functions that write where they must not, or are wrong as well: each fails by what is true of it alone."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class ScaledInPlace(Function):
    """One per cent too large, and writes into grad_output by default."""

    @staticmethod
    def forward(ctx, x, w, inplace=True):
        ctx.save_for_backward(x, w)
        ctx.inplace = inplace
        return (x.float().sigmoid() * w.float()).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        s = x.float().sigmoid()
        of_w = (g.float() * s).to(w.dtype)
        of_x = (g.float() * w.float() * s * (1 - s) * 1.01).to(x.dtype)
        return (g.copy_(of_x) if ctx.inplace else of_x), of_w, None


class ByMode(Function):
    """A square is missing in both of its modes, one of which writes into grad_output."""

    @staticmethod
    def forward(ctx, x, mode):
        ctx.save_for_backward(x)
        ctx.mode = mode
        return x.tanh()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        slope = 1 - x.tanh()
        return (g.mul_(slope) if ctx.mode == "reuse" else g * slope), None


class WritesAlways(Function):
    """Right, and writes into grad_output whatever it is asked: GV401 and nothing else."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w.float().exp().to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        e = w.float().exp().to(x.dtype)
        of_w = g * x * e
        g.data.mul_(e)
        return g, of_w


class WritesAndSign(Function):
    """A sign, and writes into grad_output."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w.float().exp().to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        e = w.float().exp().to(x.dtype)
        of_w = -g * x * e
        g.data.mul_(e)
        return g, of_w


class SpoilsSaved(Function):
    """Right in one backward, writes into what it saved behind autograd's back: GV403 and nothing else."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        y.data.mul_(g)
        return y.clone()


class SpoilsAndScales(Function):
    """One per cent too large, and writes into what it saved."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        y.data.mul_(g * 1.01)
        return y.clone()


class Returned(Function):
    """Right in one call, returns the same buffer each time: GV408 and nothing else."""

    kept = {}  # noqa: RUF012

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        buffer = Returned.kept.setdefault((x.shape, x.dtype), torch.empty_like(x))
        return torch.mul(g, x.cos(), out=buffer)


class SameResult(Function):
    """Right in one call, forward returns the same buffer each time: GV408 and nothing else."""

    kept = {}  # noqa: RUF012

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        buffer = SameResult.kept.setdefault((x.shape, x.dtype), torch.empty_like(x))
        return torch.sin(x.detach(), out=buffer)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()


def tanh(x, mode):
    return x.tanh()


def times_exp(x, w):
    return x * w.exp()


class CopiesWhereAsked(Function):
    """Works on a copy with a flag, and writes into grad_output without it."""

    @staticmethod
    def forward(ctx, x, keep):
        ctx.save_for_backward(x)
        ctx.keep = keep
        return x.tanh()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        g = g.clone() if ctx.keep else g
        return g.mul_(1 - x.tanh() ** 2), None


class ScalesWhereAsked(Function):
    """The scale of a flag is applied in place."""

    @staticmethod
    def forward(ctx, x, double):
        ctx.double = double
        return x * 2 if double else x * 1

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g.mul_(2) if ctx.double else g.clone(), None


class UnwrittenRows(Function):
    """Rows that no index leads to are not written: every draw of the test's own leads to all."""

    @staticmethod
    def forward(ctx, table, index):
        ctx.save_for_backward(index)
        ctx.shape = table.shape
        return table[index]

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        rows, place = index.unique(return_inverse=True)
        of_table = g.new_empty(ctx.shape)
        of_table[rows] = g.new_zeros(len(rows), g.shape[1]).index_add(0, place, g)
        return of_table, None
