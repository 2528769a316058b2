"""Wrong at some values, sizes and structures alone: which of them are drawn decides the verdict."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Coupling(Function):
    """A reversible block, called with modules and with their own parameters."""

    @staticmethod
    def forward(ctx, x, first, second, *weights):
        ctx.first, ctx.second = first, second
        ctx.save_for_backward(x)
        with torch.no_grad():
            return Coupling.composite(x, first, second)

    @staticmethod
    def composite(x, first, second):
        x1, x2 = x.chunk(2, dim=1)
        y1 = x1 + first(x2)
        return torch.cat([y1, x2 + second(y1)], dim=1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = Coupling.composite(x, ctx.first, ctx.second)
            weights = [*ctx.first.parameters(), *ctx.second.parameters()]
            of_x, *of_weights = torch.autograd.grad(y, [x, *weights], g)
        return of_x, None, None, 2 * of_weights[0], *of_weights[1:]


def blocks(generator, device, dtype, b=2, n=2):
    """`x, first, second` and the parameters of both modules."""
    x = torch.randn(b, 2 * n, generator=generator, dtype=dtype).to(device).requires_grad_()
    first, second = (nn.Sequential(nn.Linear(n, n, dtype=dtype), nn.Tanh()).to(device) for _ in range(2))
    return x, first, second, *first.parameters(), *second.parameters()


class Logged(Function):
    """Keeps what it has seen of every call."""

    seen = []  # noqa: RUF012

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        Logged.seen.append(g)
        return g * x.cos()


def up(x):
    """Each entry as a window of two by two."""
    return x.repeat_interleave(2, -1).repeat_interleave(2, -2)


class Pooled(Function):
    """Maxima of windows; each of equal ones gets the whole gradient."""

    @staticmethod
    def forward(ctx, x):
        y = F.max_pool2d(x, 2)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        hit = (x == up(y)).to(g)
        return hit * up(g)


class RowMaximum(Function):
    """Each of equal maxima gets the whole gradient."""

    @staticmethod
    def forward(ctx, x):
        y = x.amax(-1, keepdim=True)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return (x == y).to(g) * g


class ColumnMinimum(Function):
    """Each of equal minima gets the whole gradient."""

    @staticmethod
    def forward(ctx, x):
        y = x.amin(0)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        hit = (x == y).to(g)
        return hit * g


class SegmentMean(Function):
    """Backward counts the segments that are not empty."""

    @staticmethod
    def forward(ctx, x, offsets):
        lengths = offsets.diff()
        segment = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        ctx.save_for_backward(offsets)
        total = x.new_zeros(len(lengths), x.shape[1]).index_add(0, segment, x)
        return total / lengths.clamp(min=1)[:, None]

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        lengths = ctx.saved_tensors[0].unique().diff()
        segment = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        return (g[: len(lengths)] / lengths[:, None])[segment], None


class Shrunk(Function):
    """A series that is off by one percent, where the norm of a row is small."""

    @staticmethod
    def forward(ctx, w, v):
        ctx.save_for_backward(w, v)
        return Shrunk.terms(w)[1] * v

    @staticmethod
    def terms(w):
        squared = (w * w).sum(-1, keepdim=True)
        small, size = squared < 1e-4, squared.clamp(min=1e-4).sqrt()
        value = torch.where(small, 1 - squared / 6 + squared**2 / 120, size.sin() / size)
        slope = torch.where(small, -1 / 3 + squared / 30, (size.cos() - size.sin() / size) / size**2)
        return small, value, slope * w

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        w, v = ctx.saved_tensors
        small, value, slope = Shrunk.terms(w)
        of_w = (g * v).sum(-1, keepdim=True) * slope
        return torch.where(small, 1.01 * of_w, of_w), g * value


class AroundOne(Function):
    """The same around one, off by one percent in the other input."""

    @staticmethod
    def forward(ctx, w, v):
        ctx.save_for_backward(w, v)
        return Shrunk.terms(w - 1)[1] * v

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        w, v = ctx.saved_tensors
        small, value, slope = Shrunk.terms(w - 1)
        return (g * v).sum(-1, keepdim=True) * slope, g * torch.where(small, 1.01 * value, value)
