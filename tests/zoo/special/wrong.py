"""Right at ordinary values; wrong at values that the spec declares."""

import torch
from torch.autograd import Function


def kinked(forward, slope):
    """A function of one variable with a derivative of its own."""

    class Kinked(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * slope(x)

    return Kinked


class AbsoluteBeyond(kinked(torch.abs, lambda x: torch.where(x == 0, 1.15, x.sign()))):
    """1.15 at the kink, where the slopes are -1 and 1."""


class ReluBelow(kinked(torch.relu, lambda x: torch.where(x == 0, -0.1, (x > 0).to(x.dtype)))):
    """-0.1 at the kink, where the slopes are 0 and 1."""


class ClampBeyond(
    kinked(lambda x: x.clamp(-1, 1), lambda x: torch.where(x == 1, 1.1, (x.abs() < 1).to(x.dtype)))
):
    """1.1 at the upper end, where the slopes are 1 and 0."""


class CurvedBeyond(
    kinked(
        lambda x: x.abs() * x.exp(),
        lambda x: torch.where(x == 0, 1.05, x.sign() * x.exp() + x.abs() * x.exp()),
    )
):
    """1.05 at a kink between curved pieces."""


class SumBeyond(Function):
    """The sum of absolute values: many kinks meet at zeros, and each entry gets 1.08."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.abs().sum(-1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g[..., None] * torch.where(x == 0, 1.08, x.sign())


class CubeOfRoot(kinked(lambda x: x.abs() ** 3, lambda x: 3 * x * (x * x).sqrt())):
    """The second derivative is NaN at zero, where it is 0."""


class FourthByLogarithm(kinked(lambda x: x**4, lambda x: 4 * x * (2 * (x.abs()).log()).exp())):
    """The second derivative is NaN at zero, where it is 0: 0 times the logarithm's infinite slope."""


class SecondCutAtOne(kinked(lambda x: x**3, lambda x: torch.where(x == 1, 3 * (x * x).detach(), 3 * x * x))):
    """The second derivative is cut where x is exactly one."""
