"""What an author's own check asks of values without a word for it, and what torch asks of an argument."""

import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class AngleOnSphere(Function):
    """Of unit vectors."""

    @staticmethod
    def forward(ctx, u, v):
        assert torch.allclose(u.norm(dim=-1), u.new_ones(())) and torch.allclose(v.norm(dim=-1), v.new_ones(()))
        dot = (u * v).sum(-1)
        ctx.save_for_backward(u, v, dot)
        return torch.arccos(dot)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        u, v, dot = ctx.saved_tensors
        slope = (-g / (1 - dot * dot).sqrt())[..., None]
        return slope * v, slope * u


class AngleOnSphereOfOne(AngleOnSphere):
    """The sign of one of the gradients."""

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        u, v, dot = ctx.saved_tensors
        slope = (-g / (1 - dot * dot).sqrt())[..., None]
        return slope * v, -slope * u


class Surprise(Function):
    """Of rows that sum to one."""

    @staticmethod
    def forward(ctx, p):
        if (p.sum(-1) - 1).abs().max() > 1e-6:
            raise ValueError("no distribution")
        ctx.save_for_backward(p)
        return -(p * p.log()).sum(-1)

    @staticmethod
    def backward(ctx, g):
        (p,) = ctx.saved_tensors
        return -g[..., None] * (p.log() + 1)


class SurpriseTwice(Surprise):
    """Twice as large."""

    @staticmethod
    def backward(ctx, g):
        (p,) = ctx.saved_tensors
        return -2 * g[..., None] * (p.log() + 1)


class Phase(Function):
    """Of complex numbers."""

    @staticmethod
    def forward(ctx, z, shift):
        assert z.is_complex()
        y = z / z.abs()
        ctx.save_for_backward(z, y, shift)
        return y * shift

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        z, y, shift = ctx.saved_tensors
        inner = g * shift
        found = (y.conj() * g).real if not shift.is_complex() else y.conj() * g
        return (inner - y * (inner * y.conj()).real) / z.abs(), found


class ByKnots(Function):
    """Linear between knots, which must ascend; beyond them the outer pieces go on."""

    @staticmethod
    def forward(ctx, x, knots, values):
        k = torch.searchsorted(knots, x.contiguous()).clamp(1, len(knots) - 1)
        width = knots[k] - knots[k - 1]
        share = (x - knots[k - 1]) / width
        ctx.save_for_backward(k, width, share, values)
        return values[k - 1] * (1 - share) + values[k] * share

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        k, width, share, values = ctx.saved_tensors
        steep = g * (values[k] - values[k - 1]) / width
        of_knots, of_values = torch.zeros_like(values), torch.zeros_like(values)
        of_knots.index_add_(0, (k - 1).reshape(-1), -(steep * (1 - share)).reshape(-1))
        of_knots.index_add_(0, k.reshape(-1), -(steep * share).reshape(-1))
        of_values.index_add_(0, (k - 1).reshape(-1), (g * (1 - share)).reshape(-1))
        of_values.index_add_(0, k.reshape(-1), (g * share).reshape(-1))
        return steep, of_knots, of_values


class ByKnotsWithinThem(Function):
    """Held at the outer knots: of what descends, most would lie outside."""

    @staticmethod
    def forward(ctx, x, knots, table):
        k = torch.bucketize(x, knots).clamp(1, len(knots) - 1)
        share = ((x - knots[k - 1]) / (knots[k] - knots[k - 1])).clamp(0, 1)
        ctx.save_for_backward(x, knots, table)
        return table[k - 1] * (1 - share) + table[k] * share

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, knots, table = ctx.saved_tensors
        k = torch.bucketize(x, knots).clamp(1, len(knots) - 1)
        inside = (x > knots[0]) & (x < knots[-1])
        return g * (table[k] - table[k - 1]) / (knots[k] - knots[k - 1]) * inside, None, None


class ByKnotsTwice(ByKnotsWithinThem):
    """Twice its slope."""

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, knots, table = ctx.saved_tensors
        k = torch.bucketize(x, knots).clamp(1, len(knots) - 1)
        inside = (x > knots[0]) & (x < knots[-1])
        return 2 * g * (table[k] - table[k - 1]) / (knots[k] - knots[k - 1]) * inside, None, None


class KeptBetweenCalls(Function):
    """What backward needs lies in a buffer of the class, which the next call writes over."""

    kept = {}

    @staticmethod
    def forward(ctx, x, w):
        buffer = KeptBetweenCalls.kept.setdefault(x.shape, torch.empty_like(x))
        torch.tanh(x, out=buffer)
        ctx.shape = x.shape
        ctx.save_for_backward(w)
        return buffer * w

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (w,) = ctx.saved_tensors
        y = KeptBetweenCalls.kept[ctx.shape]
        return g * w * (1 - y * y), g * y


class KeptForLength(Function):
    """The same of what has no shape: the last call's."""

    last = None

    @staticmethod
    def forward(ctx, x):
        KeptForLength.last = x.norm(dim=-1, keepdim=True)
        ctx.save_for_backward(x)
        return x / KeptForLength.last

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        y = x / KeptForLength.last
        return (g - y * (g * y).sum(-1, keepdim=True)) / KeptForLength.last


def _as_floats(t):
    if t.dtype is not torch.float32:
        raise TypeError("float32 alone")
    return t.detach().numpy()


class SingleAlone(Function):
    """Of numbers in float32: a check that names no complex ones asks for none."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(np.sin(_as_floats(x)))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.from_numpy(_as_floats(g) * np.cos(_as_floats(x)))


class DoubleRefused(SingleAlone):
    """The same, and complex numbers would be taken."""

    @staticmethod
    def forward(ctx, x):
        if x.dtype is torch.float64:
            raise ValueError("no double precision")
        ctx.save_for_backward(x)
        return torch.from_numpy(np.sin(x.detach().numpy()).astype(np.float32))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.from_numpy((g.numpy() * np.cos(x.detach().numpy())).astype(np.float32))


class DoubleRefusedTwice(DoubleRefused):
    """Twice the gradient."""

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * torch.from_numpy((g.numpy() * np.cos(x.detach().numpy())).astype(np.float32))


class SumOfWindow(Function):
    """Places are compared with the width of a window: no real number is one."""

    @staticmethod
    def forward(ctx, x, window):
        place = torch.arange(x.shape[-1])
        back = place[:, None] - place
        kept = ((back >= 0) & (back < window)).to(x)
        ctx.save_for_backward(kept)
        return x @ kept.mT

    @staticmethod
    def backward(ctx, g):
        (kept,) = ctx.saved_tensors
        return g @ kept, None


class SumOfWiderWindow(Function):
    """Its backward takes one more place."""

    @staticmethod
    def forward(ctx, x, window):
        place = torch.arange(x.shape[-1])
        back = place[:, None] - place
        ctx.save_for_backward(((back >= 0) & (back <= window)).to(x))
        return x @ ((back >= 0) & (back < window)).to(x).mT

    @staticmethod
    def backward(ctx, g):
        (kept,) = ctx.saved_tensors
        return g @ kept, None
