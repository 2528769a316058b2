"""Functions that have values on a part of the numbers alone, which nothing names."""

import torch
from torch.autograd import Function


class ArcCosh(Function):
    """Of numbers above one."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.log(x + torch.sqrt(x * x - 1))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / torch.sqrt(x * x - 1)


class ArcCoshUnrooted(ArcCosh):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / (x * x - 1)


class LogOfMinus(Function):
    """Of negative numbers."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.log(-x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / x


class OtherSide(Function):
    """Of a longer side, and a shorter one."""

    @staticmethod
    def forward(ctx, side, longest):
        ctx.save_for_backward(side, longest)
        return torch.sqrt(longest * longest - side * side)

    @staticmethod
    def backward(ctx, g):
        side, longest = ctx.saved_tensors
        root = torch.sqrt(longest * longest - side * side)
        return -g * side / root, g * longest / root


class OtherSideUnsigned(OtherSide):
    @staticmethod
    def backward(ctx, g):
        of_side, of_longest = OtherSide.backward(ctx, g)
        return -of_side, of_longest


class InBall(Function):
    """Of points whose length is below one."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.log(1 - x.pow(2).sum(-1))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return -2 * x * (g / (1 - x.pow(2).sum(-1))).unsqueeze(-1)


class InBallOfMean(InBall):
    @staticmethod
    def backward(ctx, g):
        return InBall.backward(ctx, g) / 2
