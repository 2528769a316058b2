"""Modules and other callables of many shapes around a Function that is right."""

import functools

import torch
from torch import nn
from torch.autograd import Function


class Scale(Function):
    @staticmethod
    def forward(ctx, x, w, factor):
        ctx.save_for_backward(x, w)
        ctx.factor = factor
        return x * w * factor

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w * ctx.factor, g * x * ctx.factor, None


class Weighted(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.w = nn.Parameter(torch.ones(d))


class Plain(Weighted):
    def forward(self, x):
        return Scale.apply(x, self.w, 2.5)


class Skips(Weighted):
    """The spec leaves out a parameter with a default that stands before a given one."""

    def forward(self, x, shift=None, factor=1.0):
        y = Scale.apply(x, self.w, factor)
        return y if shift is None else y + shift


class ByName(Weighted):
    """A parameter that is passed by name alone."""

    def forward(self, x, *, factor):
        return Scale.apply(x, self.w, factor)


class Running(Weighted):
    """Statistics that every call in training mode updates and reads."""

    def __init__(self, d):
        super().__init__(d)
        self.register_buffer("count", torch.tensor(0.0))

    def forward(self, x):
        self.count += 1
        return Scale.apply(x, self.w, 1.5) * self.count


class Counts(Weighted):
    """The same in plain attributes."""

    def __init__(self, d):
        super().__init__(d)
        self.calls, self.seen = 0, []

    def forward(self, x):
        self.calls += 1
        self.seen.append(self.calls)
        return Scale.apply(x, self.w, 1.0 + len(self.seen))


class Averages(Weighted):
    """A running mean of its inputs, written without a graph and then read: a constant to autograd."""

    def __init__(self, d):
        super().__init__(d)
        self.register_buffer("mean", torch.zeros(d))

    def forward(self, x):
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return Scale.apply(x - self.mean, self.w, 1.5)


class Counted(Weighted):
    """A plain tensor that every call writes into and reads."""

    def __init__(self, d):
        super().__init__(d)
        self._calls = torch.zeros(())

    def forward(self, x):
        self._calls += 1
        return Scale.apply(x, self.w, 1.0) * self._calls


class Spectral(nn.Module):
    """torch's power iteration: its vectors are written in forward."""

    def __init__(self, d):
        super().__init__()
        self.layer = nn.utils.parametrizations.spectral_norm(nn.Linear(d, 3))

    def forward(self, x):
        return self.layer(x)


class Lazy(nn.Module):
    """Takes the shapes of its parameters from its first input."""

    def __init__(self, m):
        super().__init__()
        self.layer, self.norm = nn.LazyLinear(m), nn.LazyBatchNorm1d()

    def forward(self, x, *, factor):
        y = self.norm(self.layer(x))
        return Scale.apply(y, y, factor)


class TakesModule(nn.Module):
    def forward(self, x, layer):
        return Scale.apply(layer(x), x, 0.5)


class Nested(nn.Module):
    """Two parts that share a parameter."""

    def __init__(self, d):
        super().__init__()
        self.a, self.b = Plain(d), Plain(d)
        self.b.w = self.a.w

    def forward(self, x):
        return self.b(self.a(x))


class Frozen(Weighted):
    """A parameter that is not trained, and for which no gradient comes."""

    def __init__(self, d):
        super().__init__(d)
        self.frozen = nn.Parameter(torch.ones(d), requires_grad=False)

    def forward(self, x):
        return Scale.apply(x, self.w, 1.0) * self.frozen.detach()


class Named(Weighted):
    """Returns a dict, with a figure for the log in it; takes a list."""

    def forward(self, xs):
        ys = [Scale.apply(x, self.w, 1.0) for x in xs]
        return {"sum": sum(ys), "parts": (ys[0], ys[1].detach().mean())}


class Normed(Weighted):
    """torch's own layers beside it, in training mode."""

    def __init__(self, d):
        super().__init__(d)
        self.norm, self.drop = nn.BatchNorm1d(d), nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(Scale.apply(self.norm(x), self.w, 1.0))


class Standardized(Function):
    """Forward subtracts and divides by numbers that are no inputs."""

    @staticmethod
    def forward(ctx, x, w, mean, var):
        r = torch.rsqrt(var + 1e-5)
        ctx.save_for_backward(x, w, mean.clone(), r)
        return (x - mean) * r * w

    @staticmethod
    def backward(ctx, g):
        x, w, mean, r = ctx.saved_tensors
        return g * r * w, (g * (x - mean) * r).sum(0), None, None


class Standardize(Weighted):
    """Evaluation mode uses what training mode leaves in the buffers."""

    def __init__(self, d):
        super().__init__(d)
        self.register_buffer("mean", torch.zeros(d))
        self.register_buffer("var", torch.ones(d))

    def forward(self, x):
        if self.training:
            self.mean.lerp_(x.detach().mean(0), 0.1)
            self.var.lerp_(x.detach().var(0), 0.1)
        return Standardized.apply(x, self.w, self.mean, self.var)


class Pruned(Weighted):
    """A mask of ones until somebody prunes."""

    def __init__(self, d):
        super().__init__(d)
        self.register_buffer("mask", torch.ones(d, dtype=torch.bool))

    def forward(self, x):
        return Scale.apply(x, self.w * self.mask, 1.0)


class _Decaying(Function):
    """Backward looks on ctx for the decay of each step."""

    @staticmethod
    def forward(ctx, x, owner, rate):
        ctx.decay = owner.decay(x.shape[-1], rate)
        return x * owner.decay(x.shape[-1], rate)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.decay, None, None


class Decaying(nn.Module):
    """Keeps the decay of its last call."""

    def __init__(self):
        super().__init__()
        self.key = self.kept = None

    def decay(self, n, rate):
        if self.key != (n, rate):
            self.key = n, rate
            self.kept = torch.exp(-rate * torch.arange(n, dtype=torch.float64))
        return self.kept

    def forward(self, x, rate):
        return _Decaying.apply(x, self, rate)


def scaled(x, w, *, factor=2.5):
    return Scale.apply(x, w, factor)


by_another_name = Scale.apply
partly = functools.partial(scaled, factor=0.5)


class Callable:
    def __call__(self, x, w):
        return scaled(x, w)


an_object = Callable()


def total(first, *rest, factor):
    return first + sum(Scale.apply(x, first, factor) for x in rest)


class Initialised(nn.Module):
    """Its first call sets its parameters by what it gets."""

    def __init__(self, d):
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(d))
        self.is_ready = False

    def forward(self, x):
        if not self.is_ready:
            with torch.no_grad():
                self.loc.copy_(-x.mean(0))
            self.is_ready = True
        return (x + self.loc) ** 2


class HeldToANorm(nn.Module):
    """Rows that are longer are shortened where they are looked up."""

    def __init__(self, n, d):
        super().__init__()
        self.table = nn.Embedding(n, d, max_norm=1.0)

    def forward(self, index):
        return self.table(index)
