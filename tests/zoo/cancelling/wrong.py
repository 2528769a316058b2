"""The same formulas with a wrong double backward: the first derivative is right."""

import torch
from torch.autograd import Function


class _Scale(Function):
    """The identity, whose backward is off by a factor."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factor, None


class BernoulliDetached(Function):
    """x / expm1(x)"""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x / torch.expm1(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        x = x.detach()
        e = torch.expm1(x)
        return g * (1 / e - x * torch.exp(x) / e**2)


class BernoulliSlight(Function):
    """x / expm1(x)"""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x / torch.expm1(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        x = _Scale.apply(x, 1.01)
        e = torch.expm1(x)
        return g * (1 / e - x * torch.exp(x) / e**2)


class BernoulliQuotientFactor(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x / torch.expm1(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        x = _Scale.apply(x, 1.5)
        e = torch.expm1(x)
        return g * (e - x * (e + 1)) / (e * e)


class CosineRatioSign(Function):
    """(1 - cos x) / x^2"""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (1 - x.cos()) / x**2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        x = _Scale.apply(x, -1.0)
        return g * (x.sin() / x**2 - 2 * (1 - x.cos()) / x**3)


class LogarithmicMeanFactor(Function):
    """logarithmic mean (a - b) / (log a - log b)"""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return (a - b) / (a.log() - b.log())

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        a = _Scale.apply(a, 1.5)
        d = a.log() - b.log()
        m = (a - b) / d
        return g * (1 - m / a) / d, g * (m / b - 1) / d


class EntropyGapSlight(Function):
    """x log x - y log y - (x - y)"""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * x.log() - y * y.log() - (x - y)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        x = _Scale.apply(x, 1.01)
        return g * x.log(), -g * y.log()


class LangevinDetached(Function):
    """coth(x) - 1/x."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 1 / x.tanh() - 1 / x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        x = x.detach()
        return g * (1 / x**2 - 1 / x.sinh() ** 2)
