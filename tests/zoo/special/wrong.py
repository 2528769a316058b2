"""Right at ordinary values; wrong at values that the spec declares."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


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


def ratio(x):
    zero = x == 0
    return torch.where(zero, 1.0, torch.expm1(x) / torch.where(zero, 1.0, x))


def slope_beside_zero(x):
    other = torch.where(x == 0, 1.0, x)
    return (other * other.exp() - torch.expm1(other)) / (other * other)


class RatioFlatAtZero(kinked(ratio, lambda x: torch.where(x == 0, 0.0, slope_beside_zero(x)))):
    """No slope where forward takes its limit, as torch has it; the slope is a half."""


class CosineFlatAtOne(
    kinked(
        lambda x: torch.where(x == 1, 2.0, x * x + x.log() / torch.where(x == 1, 1.0, x - 1)),
        lambda x: torch.where(
            x == 1, 0.0, 2 * x + ((x - 1) / x - x.log()) / torch.where(x == 1, 1.0, x - 1) ** 2
        ),
    )
):
    """The same at one, where the slope is three halves."""


class LogMeanOfOne(Function):
    """The logarithmic mean of neighbours; its slope at equal ones is the first's alone, as torch has it."""

    @staticmethod
    def forward(ctx, x):
        a, b = x[..., :-1], x[..., 1:]
        ctx.save_for_backward(x)
        same = a == b
        return torch.where(same, a, (a - b) / torch.where(same, 1.0, torch.log1p((a - b) / b)))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        a, b = x[..., :-1], x[..., 1:]
        same = a == b
        r = torch.where(same, 1.0, torch.log1p((a - b) / b))
        mean = (a - b) / r
        made = torch.zeros_like(x)
        made[..., :-1] += g * torch.where(same, 1.0, (1 - mean / a) / r)
        made[..., 1:] += g * torch.where(same, 0.0, (mean / b - 1) / r)
        return made
