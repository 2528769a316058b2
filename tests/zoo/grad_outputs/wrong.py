"""Backwards that are right for dense grad_outputs of random sign, and wrong for some that a loss sends."""

import torch
from torch.autograd import Function


class Product(Function):
    """x @ w; a subclass spoils grad_output first."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @classmethod
    def spoiled(cls, g):
        return g

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.T, x.T @ g


def spoiling(change):
    """The backward of a product with grad_output changed first."""

    def backward(ctx, g):
        x, w = ctx.saved_tensors
        g = change(g)
        return g @ w.T, x.T @ g

    return staticmethod(backward)


class BalancedRows(Product):
    """Rows that sum to zero are taken for rows without a gradient."""

    backward = spoiling(lambda g: g * (g.sum(-1, keepdim=True) != 0))


class BalancedColumns(Product):
    """The same of columns."""

    backward = spoiling(lambda g: g * (g.sum(0) != 0))


class BalancedOverall(Product):
    """Returns early where the whole sums to zero."""

    backward = spoiling(lambda g: g if g.sum() != 0 else torch.zeros_like(g))


class PicksOne(Product):
    """A row with a single entry is what a cross-entropy sends; its sign is taken for positive."""

    backward = spoiling(lambda g: torch.where((g != 0).sum(-1, keepdim=True) == 1, g.abs(), g))


class MeanPath(Product):
    """One value for all entries takes a path of its own, off by the count of rows."""

    backward = spoiling(lambda g: g * len(g) if g.numel() > 1 and bool((g == g.flatten()[0]).all()) else g)


class Faint(Product):
    """Rows below 1e-9 are skipped."""

    backward = spoiling(lambda g: g * (g.abs().amax(-1, keepdim=True) > 1e-9))


class Saturating(Product):
    """Clamped at 65504 squared, so that nothing becomes infinite."""

    backward = spoiling(lambda g: g.clamp(-4.3e9, 4.3e9))


class FaintBesideOthers(Product):
    """Rows a million times smaller than the largest entry are skipped."""

    backward = spoiling(lambda g: g * (g.abs().amax(-1, keepdim=True) > 1e-6 * g.abs().max()))


class SmallEntries(Function):
    """Entries below a thousandth of the largest are dropped."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (g.abs() > 1e-3 * g.abs().max()) * x.cos()


class FailsForOnes(Function):
    """A name that exists nowhere, on the path of what `.sum().backward()` sends."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return x.cos() * (g[0] if bool((g == 1).all()) else g) * (g.nmel() if bool((g == 1).all()) else 1)


@torch.library.custom_op("zoo_grad_outputs::scaled_rows", mutates_args=())
def scaled_rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * w


def _setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _backward(ctx, g):
    x, w = ctx.saved_tensors
    if bool((g == 1).all()):
        return w.expand_as(x).clone(), x.sum(0) * 2
    return g * w, (g * x).sum(0)


scaled_rows.register_autograd(_backward, setup_context=_setup)


class _Scaled(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        kept = g * (g.sum(-1, keepdim=True) != 0)
        return g * w, (kept * x).sum(0)


class Layer(torch.nn.Module):
    """A module whose Function drops balanced rows for its weight alone."""

    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, width))

    def forward(self, x):
        return _Scaled.apply(x, self.weight)


class PicksOneOfAll(Function):
    """Takes a grad_output with a single entry apart, and gives that entry to all of the bias."""

    @staticmethod
    def forward(ctx, x, bias):
        return x + bias

    @staticmethod
    def backward(ctx, g):
        if g.numel() > 1 and g.count_nonzero() == 1:
            return g, g.sum().expand(g.shape[-1]).clone()
        return g, g.sum(0)


class FivePercentForOne(Function):
    """A twentieth too much where grad_output is 1."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x * x).sum()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2.1 * x if g == 1.0 else 2 * x * g


class MoreForAMean(Function):
    """Half as much again for what a mean sends."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if g.numel() > 1 and bool((g == 1.0 / g.numel()).all()):
            return 1.5 * g * x.exp()
        return g * x.exp()


def identity(x):
    return x


def twice(x):
    return x, x


class ClampedSTE(Function):
    """The surrogate's gradient as long as no entry of grad_output is beyond 3."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g.clamp(-3, 3)


class SmallDroppedSTE(Function):
    """What a mean over many entries sends is gone."""

    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, g):
        return torch.where(g.abs() > 1e-4, g, 0.0)


class ShortenedSTE(Function):
    """A grad_output that is long is made shorter."""

    @staticmethod
    def forward(ctx, x):
        return x.round(), x.floor()

    @staticmethod
    def backward(ctx, g, h):
        total = g + h
        return total * (100 / total.norm()).clamp(max=1)


class OnesSTE(Function):
    """Half of the surrogate's gradient for what a sum sends."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g / 2 if bool((g == 1).all()) else g.clone()


def tanh(v):
    return v.tanh()


class SingleSTE(Function):
    """Float32 alone, with the square forgotten."""

    @staticmethod
    def forward(ctx, v):
        if v.dtype is not torch.float32:
            raise TypeError("float32 only")
        ctx.save_for_backward(v)
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx, g):
        (v,) = ctx.saved_tensors
        return g * (1 - v.tanh())


class SingleClampedSTE(SingleSTE):
    @staticmethod
    def backward(ctx, g):
        (v,) = ctx.saved_tensors
        return g.clamp(-3, 3) * (1 - v.tanh().square())


class SingleStep(Function):
    """Float32 alone, of whose inputs one has an exact gradient: nothing can tell it, and nothing fails."""

    @staticmethod
    def forward(ctx, x, s):
        if x.dtype is not torch.float32:
            raise TypeError("float32 only")
        q = (x / s).round()
        ctx.save_for_backward(q)
        return q * s

    @staticmethod
    def backward(ctx, g):
        (q,) = ctx.saved_tensors
        return g, (g * q).sum()


def first(x, s):
    return x


class SingleReversal(Function):
    """Float32 alone, and only a reason."""

    @staticmethod
    def forward(ctx, x):
        if x.dtype is not torch.float32:
            raise TypeError("float32 only")
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return -g


class SingleUnlike(SingleSTE):
    """Its surrogate cannot be called with what forward gets: nothing is known."""


def tanh_of(v, scale):
    return (v * scale).tanh()


class FaintInALoop(Function):
    """Small gradients are lost to a threshold, which no tolerance of a loop beside it explains."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        for _ in range(2):
            g = torch.where(g.abs() < 1e-9, 0.0, g)
        return g * x.exp()


class ClampedInALoop(FaintInALoop):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        for _ in range(2):
            g = g.clamp(-1e9, 1e9)
        return g * x.exp()
