"""Right formulas whose derivatives cancel at one end of a wide range, by torch and by NumPy."""

import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Bernoulli(Function):
    """x / expm1(x)"""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x / torch.expm1(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        e = torch.expm1(x)
        return g * (1 / e - x * torch.exp(x) / e**2)


class BernoulliQuotient(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x / torch.expm1(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        e = torch.expm1(x)
        return g * (e - x * (e + 1)) / (e * e)


class LogRatio(Function):
    """log1p(x) / x"""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.log1p(x) / x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (1 / (x * (1 + x)) - torch.log1p(x) / x**2)


class CosineRatio(Function):
    """(1 - cos x) / x^2"""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (1 - x.cos()) / x**2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x.sin() / x**2 - 2 * (1 - x.cos()) / x**3)


class LogarithmicMean(Function):
    """logarithmic mean (a - b) / (log a - log b)"""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return (a - b) / (a.log() - b.log())

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        d = a.log() - b.log()
        m = (a - b) / d
        return g * (1 - m / a) / d, g * (m / b - 1) / d


class EntropyGap(Function):
    """x log x - y log y - (x - y)"""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * x.log() - y * y.log() - (x - y)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * x.log(), -g * y.log()


class Langevin(Function):
    """coth(x) - 1/x."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 1 / x.tanh() - 1 / x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (1 / x**2 - 1 / x.sinh() ** 2)


class Log1mExp(Function):
    """log(1 - exp(-x)) with cancelling 1 - exp"""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (-(-x).expm1()).log()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / (x.exp() - 1)


def by_numpy(f, x):
    return torch.from_numpy(np.asarray(f(x.detach().numpy())))


class SincNumpy(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return by_numpy(lambda x: np.sin(x) / x, x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * by_numpy(lambda x: np.cos(x) / x - np.sin(x) / x**2, x)


class _Slope(Function):
    """A backward in NumPy with a double backward of its own, in NumPy too."""

    @staticmethod
    def forward(ctx, x, g):
        ctx.save_for_backward(x, g)
        return g * by_numpy(lambda x: (np.expm1(x) - x * np.exp(x)) / np.expm1(x) ** 2, x)

    @staticmethod
    @once_differentiable
    def backward(ctx, gg):
        x, g = ctx.saved_tensors
        first = by_numpy(lambda x: (np.expm1(x) - x * np.exp(x)) / np.expm1(x) ** 2, x)

        def second(x):
            e = np.expm1(x)
            return -np.exp(x) * x / e**2 - 2 * np.exp(x) * (e - x * np.exp(x)) / e**3

        return gg * g * by_numpy(second, x), gg * first


class BernoulliTwiceNumpy(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return by_numpy(lambda x: x / np.expm1(x), x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return _Slope.apply(x, g)
