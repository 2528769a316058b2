"""Right at the values that the spec declares: at kinks, by any convention between the slopes."""

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


class AbsoluteRight(kinked(torch.abs, lambda x: torch.where(x == 0, 1.0, x.sign()))):
    """The slope on the right."""


class AbsoluteZero(kinked(torch.abs, torch.sign)):
    """Zero."""


class ReluHalf(kinked(torch.relu, lambda x: torch.where(x == 0, 0.5, (x > 0).to(x.dtype)))):
    """In the middle."""


class ClampOpen(kinked(lambda x: x.clamp(-1, 1), lambda x: (x.abs() <= 1).to(x.dtype))):
    """The slope inside."""


class Curved(
    kinked(lambda x: x.abs() * x.exp(), lambda x: torch.where(x < 0, -1.0, 1.0) * (1 + x) * x.exp())
):
    """The slope of the curved piece on the right."""


class Steep(
    kinked(
        lambda x: (50 * x).sin().abs(),
        lambda x: 50 * (50 * x).cos() * torch.where((50 * x).sin() < 0, -1.0, 1.0),
    )
):
    """A kink between steep and curved pieces."""


class Sum(Function):
    """The sum of absolute values; one at zero."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.abs().sum(-1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g[..., None] * torch.where(x < 0, -1.0, 1.0)


class Norm(Function):
    """A norm, with the gradient 0 for rows of zeros."""

    @staticmethod
    def forward(ctx, x):
        n = x.norm(dim=-1, keepdim=True)
        ctx.save_for_backward(x, n)
        return n[..., 0]

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, n = ctx.saved_tensors
        return g[..., None] * torch.where(n == 0, torch.zeros_like(x), x / n)


class Largest(Function):
    """All that ties for the largest shares the gradient."""

    @staticmethod
    def forward(ctx, x):
        y = x.amax(-1, keepdim=True)
        ctx.save_for_backward(x == y)
        return y[..., 0]

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return g[..., None] * mask.to(g.dtype) / mask.sum(-1, keepdim=True)


class Middle(Function):
    """The median, whose gradient goes to one of those that tie."""

    @staticmethod
    def forward(ctx, x):
        y, k = x.median(-1)
        ctx.save_for_backward(k)
        ctx.shape = x.shape
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (k,) = ctx.saved_tensors
        return g.new_zeros(ctx.shape).scatter(-1, k[..., None], g[..., None])


class SquaredRelu(kinked(lambda x: x.relu() ** 2, lambda x: 2 * x.relu())):
    """The derivative itself has a kink: its own is anything between 0 and 2."""


class Cube(kinked(lambda x: x.abs() ** 3, lambda x: 3 * x * x.abs())):
    """Twice differentiable at zero."""


class RootOfSquare(kinked(lambda x: x * x.abs() / 2, lambda x: (x * x).sqrt())):
    """NaN for the second derivative at zero, where the first has a kink and there is none."""


class Elu(kinked(torch.nn.functional.elu, lambda x: torch.where(x > 0, torch.ones_like(x), x.exp()))):
    """The second derivative jumps at zero."""


def ratio(x):
    zero = x == 0
    return torch.where(zero, 1.0, torch.expm1(x) / torch.where(zero, 1.0, x))


def slope_beside_zero(x):
    other = torch.where(x == 0, 1.0, x)
    return (other * other.exp() - torch.expm1(other)) / (other * other)


class RatioHalfAtZero(Function):
    """Of a limit that forward takes in a branch: torch has no slope there."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return ratio(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.where(x == 0, 0.5, slope_beside_zero(x))
