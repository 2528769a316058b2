"""Wrong where two inputs are equal, and nowhere else: both get the whole gradient, or neither gets any."""

import torch
from torch.autograd import Function


def of_two(forward, left, right):
    """A Function of x and y, and the slopes that backward gives for each."""

    class Kinked(Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return forward(x, y)

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            to_x, to_y = g * left(x, y), g * right(x, y)
            return to_x.sum_to_size(x.shape), to_y.sum_to_size(y.shape)

    return Kinked


class MaximumTwice(of_two(torch.maximum, lambda x, y: x >= y, lambda x, y: y >= x)):
    """Both get all of it."""


class MaximumLost(of_two(torch.maximum, lambda x, y: x > y, lambda x, y: y > x)):
    """Neither gets any."""


class MaximumOfUnlikeTwice(of_two(torch.maximum, lambda x, y: x >= y, lambda x, y: y >= x)):
    """Both get all of it; the second is broadcast."""


class MinimumTwice(of_two(torch.minimum, lambda x, y: x <= y, lambda x, y: y <= x)):
    """Both get all of it."""


class HingeOfDifferenceHalf(
    of_two(lambda x, y: torch.relu(x - y), lambda x, y: x >= y, lambda x, y: -1.0 * (x > y))
):
    """One input gets the slope of one side, and the other that of the other side."""


class WeighedMaximumTwice(
    of_two(
        lambda x, y: torch.maximum(x, y) * (x + 3) * (y + 3),
        lambda x, y: (x >= y) * (x + 3) * (y + 3) + torch.maximum(x, y) * (y + 3),
        lambda x, y: (y >= x) * (x + 3) * (y + 3) + torch.maximum(x, y) * (x + 3),
    )
):
    """A smooth part beside the kink."""


class ClampTwice(Function):
    """x and the bound that it is equal to both get all of it."""

    @staticmethod
    def forward(ctx, x, low, high):
        ctx.save_for_backward(x, low, high)
        return torch.clamp(x, low, high)

    @staticmethod
    def backward(ctx, g):
        x, low, high = ctx.saved_tensors
        to_x = g * ((x >= low) & (x <= high))
        return to_x, g * ((x <= low) & (low < high)), g * ((x > high) | (high < low))


class LargestOfBothTwice(Function):
    """The largest of each row of two matrices: every entry as large gets the gradient."""

    @staticmethod
    def forward(ctx, x, y):
        largest = torch.maximum(x.amax(-1, keepdim=True), y.amax(-1, keepdim=True))
        ctx.save_for_backward(x == largest, y == largest)
        return largest.squeeze(-1)

    @staticmethod
    def backward(ctx, g):
        of_x, of_y = ctx.saved_tensors
        return g[:, None] * of_x, g[:, None] * of_y


class DistanceBeyond(
    of_two(
        lambda x, y: (x - y).abs(),
        lambda x, y: (x - y).sign() + 3.0 * (x == y),
        lambda x, y: (y - x).sign() - 3.0 * (x == y),
    )
):
    """They add up to zero, as they should, and each is beyond the slopes on both sides."""


class InOrderTwice(Function):
    """Both in order: where they are equal, both outputs send their gradients to both."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return torch.minimum(x, y), torch.maximum(x, y)

    @staticmethod
    def backward(ctx, a, b):
        x, y = ctx.saved_tensors
        return a * (x <= y) + b * (x >= y), a * (y <= x) + b * (y >= x)


def in_single(forward):
    """The same map, which computes in float32 whatever it is given."""
    return lambda x, y: forward(x.float(), y.float()).to(x.dtype)


class MaximumTwiceInSingle(of_two(in_single(torch.maximum), lambda x, y: x >= y, lambda x, y: y >= x)):
    """Both get all of it."""


class MaximumTwiceInSingleAtOne(MaximumTwiceInSingle):
    """The same, where equal entries are declared at another value."""


class MinimumLostInSingle(of_two(in_single(torch.minimum), lambda x, y: x < y, lambda x, y: y < x)):
    """Neither gets any; the second is broadcast."""


class ScaledMaximumTwiceInSingle(
    of_two(
        in_single(lambda x, y: (0.3 * torch.maximum(x, y)).exp()),
        lambda x, y: 0.3 * (0.3 * torch.maximum(x, y)).exp() * (x >= y),
        lambda x, y: 0.3 * (0.3 * torch.maximum(x, y)).exp() * (x <= y),
    )
):
    """With rounding in what it returns."""


class DistanceBeyondInSingle(
    of_two(
        in_single(lambda x, y: (x - y).abs()),
        lambda x, y: (x - y).sign() + 3.0 * (x == y),
        lambda x, y: (y - x).sign() - 3.0 * (x == y),
    )
):
    """They add up to zero, as they should, and each is beyond the slopes on both sides."""


class MaximumTwiceKernel(Function):
    """A kernel without a float64 path, beside a reference."""

    @staticmethod
    def forward(ctx, x, y):
        if x.dtype is torch.float64:
            raise TypeError("float32 and shorter alone")
        ctx.save_for_backward(x, y)
        return torch.maximum(x, y)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * (x >= y), g * (x <= y)


class LargerRealPartTwice(
    of_two(
        lambda x, y: torch.maximum(x.real, y.real),
        lambda x, y: (x.real >= y.real) + 0j,
        lambda x, y: (x.real <= y.real) + 0j,
    )
):
    """Both get all of it."""


class LargerModulusTwice(
    of_two(
        lambda x, y: torch.maximum(x.abs(), y.abs()),
        lambda x, y: (x.abs() >= y.abs()) * x.sgn(),
        lambda x, y: (x.abs() <= y.abs()) * y.sgn(),
    )
):
    """Both get all of it."""


class LargerOfRealAndComplexTwice(
    of_two(
        lambda x, y: torch.maximum(x.real, y),
        lambda x, y: (x.real >= y) + 0j,
        lambda x, y: 1.0 * (x.real <= y),
    )
):
    """Both get all of it."""


class LargerOfComplexAndRealLost(
    of_two(
        lambda x, y: torch.maximum(x, y.real),
        lambda x, y: 1.0 * (x > y.real),
        lambda x, y: (x < y.real) + 0j,
    )
):
    """Neither gets any; the complex one is the second."""


class SegmentMaximumTwice(Function):
    """All that are equal get all of it, wherever an index brings them together."""

    @staticmethod
    def forward(ctx, x, index, count):
        largest = x.new_full((count,), -torch.inf).scatter_reduce(0, index, x, "amax")
        ctx.save_for_backward(x, index, largest)
        return largest.nan_to_num(neginf=0.0)

    @staticmethod
    def backward(ctx, g):
        x, index, largest = ctx.saved_tensors
        return g[index] * (x == largest[index]), None, None


class MaximumTwiceInNumpy(Function):
    """Every entry that equals the largest of its row gets all of the gradient."""

    @staticmethod
    def forward(ctx, x):
        largest = torch.from_numpy(x.detach().numpy().max(-1))
        ctx.save_for_backward(x, largest)
        return largest

    @staticmethod
    def backward(ctx, g):
        x, largest = ctx.saved_tensors
        return g[..., None] * (x == largest[..., None])


class ExponentialFromZero(Function):
    """Wrong at the end of its range alone, where nothing has a kink."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.exp(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.where(x == 0, 5.0, torch.exp(x))
