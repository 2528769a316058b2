"""Modules whose Function is wrong, seen through what the module makes of it."""

import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Doubled(Function):
    """Right for `x`; twice the gradient for `w`."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, (2 * g * x).sum(0)


class Weighted(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.w = nn.Parameter(torch.ones(d))


class InParameter(Weighted):
    def forward(self, x):
        return Doubled.apply(x, self.w)


class InDict(Weighted):
    """The result lies in a dict, the second in a tuple in it."""

    def forward(self, x):
        y = Doubled.apply(x, self.w)
        return {"scaled": x * 3, "parts": (y, y.detach().mean())}


class Averages(Weighted):
    """State that forward writes is a constant: what is wrong beside it is wrong."""

    def __init__(self, d):
        super().__init__(d)
        self.register_buffer("mean", torch.zeros(d))

    def forward(self, x):
        self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return Doubled.apply(x - self.mean, self.w)


class Lazy(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.layer = nn.LazyLinear(m)

    def forward(self, x, w):
        return Doubled.apply(self.layer(x), w)


class Evaluating(Weighted):
    """Right in training mode."""

    def forward(self, x):
        return x * self.w if self.training else Doubled.apply(x, self.w)


class Standardized(Function):
    """Right where the mean is 0."""

    @staticmethod
    def forward(ctx, x, w, mean, var):
        r = torch.rsqrt(var + 1e-5)
        ctx.save_for_backward(x, w, mean.clone(), r)
        return (x - mean) * r * w

    @staticmethod
    def backward(ctx, g):
        x, w, _, r = ctx.saved_tensors
        return g * r * w, (g * x * r).sum(0), None, None


class Standardize(Weighted):
    """Right in training mode; evaluation mode uses what training mode leaves in the buffers."""

    def __init__(self, d):
        super().__init__(d)
        self.register_buffer("mean", torch.zeros(d))
        self.register_buffer("var", torch.ones(d))

    def forward(self, x):
        if self.training:
            self.mean.lerp_(x.detach().mean(0), 0.1)
            self.var.lerp_(x.detach().var(0), 0.1)
            return x * self.w
        return Standardized.apply(x, self.w, self.mean, self.var)


class Masked(Function):
    """Right where the mask is true."""

    @staticmethod
    def forward(ctx, x, w, mask):
        ctx.save_for_backward(x, w, mask)
        return x * w * mask

    @staticmethod
    def backward(ctx, g):
        x, w, mask = ctx.saved_tensors
        return g * w * mask, (g * x).sum(0), None


class _Decaying(Function):
    """Backward looks on the module for the decay of each step."""

    @staticmethod
    def forward(ctx, x, owner, rate):
        ctx.owner = owner
        return x * owner.decay(x.shape[-1], rate)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.owner.kept, None, None


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


class Silent(Weighted):
    """Returns no tensor: nothing is verified, which is not green."""

    def forward(self, x):
        return float(Doubled.apply(x, self.w).sum())


class ByName(Weighted):
    """The factor comes by name alone, and backward of the plain product forgets it."""

    def forward(self, x, *, factor):
        return Doubled.apply(x, self.w) * factor


by_another_name = Doubled.apply


class FrozenNorm(Function):
    @staticmethod
    def forward(ctx, x, w, mean, training):
        mean = x.mean(0) if training else mean
        ctx.save_for_backward(x - mean, w)
        ctx.training = training
        return (x - mean) * w

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        of_x = g * w
        if ctx.training or not ctx.needs_input_grad[1]:
            of_x = of_x - of_x.mean(0)
        return of_x, (g * x).sum(0), None, None


class FineTuned(nn.Module):
    """In evaluation mode the gradient is that of training wherever the weight is frozen."""

    def __init__(self, d):
        super().__init__()
        self.w = nn.Parameter(torch.linspace(0.5, 1.5, d))
        self.register_buffer("mean", torch.zeros(d))

    def forward(self, x):
        return FrozenNorm.apply(x, self.w, self.mean, self.training)
