"""Right and wrong twins whose mistake a guess may not excuse, and whose zeros it may not hide."""

import torch
from torch.autograd import Function


class EdgeSoftmax(Function):
    """One entry of a group alone is 1, whatever it was: there is a gradient where two share a group."""

    @staticmethod
    def forward(ctx, scores, index, groups):
        at = index.unsqueeze(-1).expand_as(scores)
        largest = scores.new_full((groups, scores.size(1)), float("-inf"))
        largest = largest.scatter_reduce(0, at, scores, reduce="amax")
        e = (scores - largest.gather(0, at)).exp()
        y = e / e.new_zeros(groups, e.size(1)).scatter_add(0, at, e).gather(0, at)
        ctx.save_for_backward(y, at)
        ctx.groups = groups
        return y

    @classmethod
    def sums(cls, g, at, groups):
        return g.new_zeros(groups, g.size(1)).scatter_add(0, at, g)

    @classmethod
    def backward(cls, ctx, g):
        y, at = ctx.saved_tensors
        gy = g * y
        return gy - y * cls.sums(gy, at, ctx.groups).gather(0, at), None, None


class EdgeSoftmaxOverwritten(EdgeSoftmax):
    """Wrong where two share a group."""

    @classmethod
    def sums(cls, g, at, groups):
        return g.new_zeros(groups, g.size(1)).scatter(0, at, g)


class Shifted(Function):
    """A factor and a bias that may be None, whose shapes and values are guesses."""

    @staticmethod
    def forward(ctx, x, w, b: torch.Tensor | None, scale: float):
        ctx.save_for_backward(x, w)
        ctx.scale, ctx.given = scale, b is not None
        y = scale * (x @ w.t())
        return y if b is None else y + b

    @classmethod
    def of_weight(cls, g, x, scale):
        return scale * g.t() @ x

    @classmethod
    def backward(cls, ctx, g):
        x, w = ctx.saved_tensors
        of_x, of_w = ctx.scale * g @ w, cls.of_weight(g, x, ctx.scale)
        return of_x, of_w, g.sum(0) if ctx.given else None, None


class ShiftedUnscaled(Shifted):
    """Wrong with the bias and without it."""

    @classmethod
    def of_weight(cls, g, x, scale):
        return g.t() @ x


class ShiftedOnly(Shifted):
    """Wrong in the gradient of the bias, whose shape is a guess: one row of it for all may be meant."""

    @classmethod
    def backward(cls, ctx, g):
        of_x, of_w, of_b, _ = super().backward(ctx, g)
        return of_x, of_w, None if of_b is None else 2 * of_b, None
