"""Wrong twins: a factor, or a gradient cut to zero, where the function saturates."""

import math

import torch
from torch.autograd import Function


def make(name, f, df, cond):
    """A factor 2 in the tail."""

    class W(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return f(x)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * df(x) * torch.where(cond(x), 2.0, 1.0)

    W.__name__ = W.__qualname__ = name
    W.__module__ = __name__
    return W


def gelu(x):
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def dgelu(x):
    return 0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)


ExpLow = make("ExpLow", torch.exp, torch.exp, lambda x: x < -6)
ExpHigh = make("ExpHigh", torch.exp, torch.exp, lambda x: x > 6)
SigLow = make("SigLow", torch.sigmoid, lambda x: torch.sigmoid(x) * torch.sigmoid(-x), lambda x: x < -6)
SigHigh = make("SigHigh", torch.sigmoid, lambda x: torch.sigmoid(x) * torch.sigmoid(-x), lambda x: x > 4)
ErfcHigh = make(
    "ErfcHigh", torch.erfc, lambda x: -2 / math.sqrt(math.pi) * torch.exp(-x * x), lambda x: x > 3
)
ErfcLow = make("ErfcLow", torch.erfc, lambda x: -2 / math.sqrt(math.pi) * torch.exp(-x * x), lambda x: x < -3)
CubeSmall = make("CubeSmall", lambda x: x**3, lambda x: 3 * x * x, lambda x: x.abs() < 2)
CubeLarge = make("CubeLarge", lambda x: x**3, lambda x: 3 * x * x, lambda x: x.abs() > 8)
SoftplusLow = make("SoftplusLow", torch.nn.functional.softplus, torch.sigmoid, lambda x: x < -6)
SoftplusHigh = make(
    "SoftplusHigh", lambda x: torch.logaddexp(x, torch.zeros_like(x)), torch.sigmoid, lambda x: x > 6
)
TanhTail = make("TanhTail", torch.tanh, lambda x: 1 - torch.tanh(x) ** 2, lambda x: x.abs() > 4)


class GeluCut(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return gelu(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.where(x > 6, torch.zeros_like(x), dgelu(x))


class TanhCut(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.tanh(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.where(x.abs() > 3, torch.zeros_like(x), 1 - torch.tanh(x) ** 2)


TinyWrong = make(
    "TinyWrong", lambda x: 1e-20 * torch.sin(x), lambda x: 1e-20 * torch.cos(x), lambda x: x > -1e9
)
TiniestWrong = make(
    "TiniestWrong", lambda x: 1e-280 * torch.sin(x), lambda x: 1e-280 * torch.cos(x), lambda x: x > -1e9
)


class SoftmaxNoSum(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * g
