"""Functions that have a kink where two inputs are equal, with a gradient that is right there.

Whatever share of the gradient each of two equal inputs gets, together they get all of it.
"""

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


class MaximumShared(
    of_two(
        torch.maximum,
        lambda x, y: (x > y) + 0.5 * (x == y),
        lambda x, y: (y > x) + 0.5 * (x == y),
    )
):
    """Half to each, as torch does."""


class MaximumFirst(of_two(torch.maximum, lambda x, y: x >= y, lambda x, y: x < y)):
    """All of it to the first."""


class MaximumOfUnlike(of_two(torch.maximum, lambda x, y: x > y, lambda x, y: x <= y)):
    """All of it to the second, which is broadcast."""


class MinimumUnequally(
    of_two(
        torch.minimum,
        lambda x, y: (x < y) + 0.3 * (x == y),
        lambda x, y: (y < x) + 0.7 * (x == y),
    )
):
    """Shares that are not the same."""


class Distance(of_two(lambda x, y: (x - y).abs(), lambda x, y: (x - y).sign(), lambda x, y: (y - x).sign())):
    """Zero for both."""


class HingeOfDifference(
    of_two(lambda x, y: torch.relu(x - y), lambda x, y: x >= y, lambda x, y: -1.0 * (x >= y))
):
    """The slope of one side, for both."""


class WeighedMaximum(
    of_two(
        lambda x, y: torch.maximum(x, y) * (x + 3) * (y + 3),
        lambda x, y: (x > y) * (x + 3) * (y + 3) + torch.maximum(x, y) * (y + 3),
        lambda x, y: (y >= x) * (x + 3) * (y + 3) + torch.maximum(x, y) * (x + 3),
    )
):
    """A smooth part beside the kink."""


class Jump(of_two(lambda x, y: x * (x > y) + y * (y > x), lambda x, y: x > y, lambda x, y: y > x)):
    """Forward is 0 where both are equal, and jumps."""


class JumpShared(
    of_two(
        lambda x, y: x * (x > y) + y * (y > x),
        lambda x, y: (x > y) + 0.5 * (x == y),
        lambda x, y: (y > x) + 0.5 * (x == y),
    )
):
    """The same with the gradient of what is around."""


class Clamp(Function):
    """Between bounds that are tensors, which get what x does not."""

    @staticmethod
    def forward(ctx, x, low, high):
        ctx.save_for_backward(x, low, high)
        return torch.clamp(x, low, high)

    @staticmethod
    def backward(ctx, g):
        x, low, high = ctx.saved_tensors
        to_x = g * ((x >= low) & (x <= high))
        return to_x, g * ((x < low) & (low < high)), g * ((x > high) | (high < low))


class LargestOfBoth(Function):
    """The largest of each row of two matrices: the gradient goes to where it was found first."""

    @staticmethod
    def forward(ctx, x, y):
        both = torch.cat([x, y], -1)
        place = both.argmax(-1, keepdim=True)
        ctx.save_for_backward(place)
        ctx.width = x.shape[-1]
        return both.gather(-1, place).squeeze(-1)

    @staticmethod
    def backward(ctx, g):
        (place,) = ctx.saved_tensors
        both = g.new_zeros(g.shape[0], 2 * ctx.width).scatter_(-1, place, g[:, None])
        return both[:, : ctx.width], both[:, ctx.width :]


class Middle(Function):
    """The middle one of x, y and 0, with the gradient of one of the pieces that meet where all are equal."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return torch.minimum(torch.maximum(x, y), torch.maximum(torch.minimum(x, y), torch.zeros_like(x)))

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        of_x = ((x <= y) & (x > 0)) | ((x >= y) & (x < 0))
        of_y = ((y < x) & (y > 0)) | ((y > x) & (y < 0))
        return g * of_x, g * of_y


class MaximumInPlace(Function):
    """The larger one, written into x."""

    @staticmethod
    def forward(ctx, x, y):
        m = x >= y
        ctx.save_for_backward(m)
        ctx.mark_dirty(x)
        x.copy_(torch.maximum(x, y))
        return x

    @staticmethod
    def backward(ctx, g):
        (m,) = ctx.saved_tensors
        return g * m, g * ~m


class AboveOther(Function):
    """x above y and 0 below: a jump, of which backward takes one side."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return torch.where(x > y, x, torch.zeros_like(x))

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * (x >= y), torch.zeros_like(y)


class SumOfMaxima(Function):
    """Sums of the larger ones."""

    @staticmethod
    def forward(ctx, x, y):
        s = torch.stack([x, y]).max(0)
        ctx.save_for_backward(s.indices)
        return s.values.sum(-1)

    @staticmethod
    def backward(ctx, g):
        (i,) = ctx.saved_tensors
        return g[:, None] * (i == 0), g[:, None] * (i == 1)


class InOrder(Function):
    """Both in order: two outputs."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x <= y)
        return torch.minimum(x, y), torch.maximum(x, y)

    @staticmethod
    def backward(ctx, a, b):
        (m,) = ctx.saved_tensors
        return torch.where(m, a, b), torch.where(m, b, a)


class ScaledMaximum(Function):
    """Beside an input that comes first."""

    @staticmethod
    def forward(ctx, w, x, y):
        ctx.save_for_backward(w, x, y)
        return w * torch.maximum(x, y)

    @staticmethod
    def backward(ctx, g):
        w, x, y = ctx.saved_tensors
        return g * torch.maximum(x, y), g * w * (x >= y), g * w * (x < y)


class DividedDifference(Function):
    """A divided difference with a guard: very steep where both are equal, and zero there."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return (x.exp() - y.exp()) / (x - y + 1e-12)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        d = x - y + 1e-12
        q = (x.exp() - y.exp()) / d
        return g * (x.exp() - q) / d, g * (q - y.exp()) / d


class DividedDifferenceWithLimit(Function):
    """The same with its limit."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        d = x - y
        return torch.where(d == 0, x.exp(), y.exp() * torch.expm1(d) / torch.where(d == 0, 1.0, d))

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        d = x - y
        s = torch.where(d == 0, 1.0, d)
        q = y.exp() * torch.expm1(d) / s
        gx = torch.where(d == 0, x.exp() / 2, (x.exp() - q) / s)
        gy = torch.where(d == 0, x.exp() / 2, (q - y.exp()) / s)
        return g * gx, g * gy


class RootOfDistance(Function):
    """Infinite slopes where both are equal, cut off."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return (x - y).abs().sqrt()

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        d = x - y
        s = d.sign() / (2 * d.abs().sqrt().clamp_min(1e-30))
        return g * s, -g * s


def in_single(forward):
    """The same map, which computes in float32 whatever it is given."""
    return lambda x, y: forward(x.float(), y.float()).to(x.dtype)


class MaximumInSingle(of_two(in_single(torch.maximum), lambda x, y: x >= y, lambda x, y: x < y)):
    """All of it to the first, where torch's own gradient is half to each."""


class MinimumInSingle(of_two(in_single(torch.minimum), lambda x, y: x < y, lambda x, y: x >= y)):
    """All of it to the second, which is broadcast."""


class DistanceInSingle(
    of_two(
        in_single(lambda x, y: (x - y).abs()),
        lambda x, y: torch.where(x >= y, 1.0, -1.0),
        lambda x, y: torch.where(x >= y, -1.0, 1.0),
    )
):
    """The slopes of one side, where torch's own gradient is zero."""


class HingesInSingle(
    of_two(in_single(lambda x, y: x.relu() - y.relu()), lambda x, y: x > 0, lambda x, y: -1.0 * (y >= 0))
):
    """A kink in each input alone."""


class ScaledMaximumInSingle(
    of_two(
        in_single(lambda x, y: (0.3 * torch.maximum(x, y)).exp()),
        lambda x, y: 0.3 * (0.3 * torch.maximum(x, y)).exp() * (x >= y),
        lambda x, y: 0.3 * (0.3 * torch.maximum(x, y)).exp() * (x < y),
    )
):
    """With rounding in what it returns."""


class LargestInSingle(Function):
    """The largest one of three: the gradient goes to where it was found first."""

    @staticmethod
    def forward(ctx, x, y, z):
        ctx.save_for_backward(torch.stack([x, y, z]).argmax(0))
        return torch.maximum(torch.maximum(x.float(), y.float()), z.float()).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (first,) = ctx.saved_tensors
        return g * (first == 0), g * (first == 1), g * (first == 2)


class ClampInSingle(Function):
    """Between bounds that are tensors, one after the other."""

    @staticmethod
    def forward(ctx, x, low, high):
        ctx.save_for_backward(x, low, high)
        return torch.minimum(torch.maximum(x.float(), low.float()), high.float()).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        x, low, high = ctx.saved_tensors
        above = torch.maximum(x, low)
        kept = g * (above <= high)
        return kept * (x > low), kept * (x <= low), g * (above > high)


class MaximumKernel(Function):
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
        return g * (x >= y), g * (x < y)


class LargerRealPart(
    of_two(
        lambda x, y: torch.maximum(x.real, y.real),
        lambda x, y: (x.real >= y.real) + 0j,
        lambda x, y: (x.real < y.real) + 0j,
    )
):
    """Of complex inputs."""


class LargerModulus(
    of_two(
        lambda x, y: torch.maximum(x.abs(), y.abs()),
        lambda x, y: (x.abs() >= y.abs()) * x.sgn(),
        lambda x, y: (x.abs() < y.abs()) * y.sgn(),
    )
):
    """Of complex inputs, where both parts count."""


class LargerOfRealAndComplex(
    of_two(
        lambda x, y: torch.maximum(x.real, y),
        lambda x, y: (x.real > y) + 0j,
        lambda x, y: 1.0 * (x.real <= y),
    )
):
    """Of a complex input the real part."""


class SegmentMaximumShared(Function):
    """All that are equal share it, wherever an index brings them together."""

    @staticmethod
    def forward(ctx, x, index, count):
        largest = x.new_full((count,), -torch.inf).scatter_reduce(0, index, x, "amax")
        ctx.save_for_backward(x, index, largest)
        return largest.nan_to_num(neginf=0.0)

    @staticmethod
    def backward(ctx, g):
        x, index, largest = ctx.saved_tensors
        is_largest = (x == largest[index]).to(g)
        return g[index] * is_largest / torch.zeros_like(g).index_add(0, index, is_largest)[index], None, None


class MedianOfRow(Function):
    """The gradient of a median goes to the entry that it is."""

    @staticmethod
    def forward(ctx, x):
        value, index = x.median(-1)
        ctx.save_for_backward(x, index)
        return value

    @staticmethod
    def backward(ctx, g):
        x, index = ctx.saved_tensors
        return torch.zeros_like(x).scatter(-1, index[..., None], g[..., None])


class MiddleInNumpy(Function):
    """The middle entry of each row, and where it came from; of equal ones the one that a stable order has."""

    @staticmethod
    def forward(ctx, x):
        values = x.detach().numpy()
        half = values.shape[-1] // 2
        place = torch.from_numpy(values.argsort(-1, kind="stable")[..., half : half + 1].copy())
        ctx.save_for_backward(place)
        ctx.shape = x.shape
        return torch.from_numpy(values).gather(-1, place).squeeze(-1)

    @staticmethod
    def backward(ctx, g):
        (place,) = ctx.saved_tensors
        return g.new_zeros(ctx.shape).scatter(-1, place, g[..., None])


class SortedInNumpy(Function):
    """A row in order; each gets its own gradient back."""

    @staticmethod
    def forward(ctx, x):
        values = x.detach().numpy()
        order = torch.from_numpy(values.argsort(-1, kind="stable").copy())
        ctx.save_for_backward(order)
        return torch.from_numpy(values).gather(-1, order)

    @staticmethod
    def backward(ctx, g):
        (order,) = ctx.saved_tensors
        return torch.zeros_like(g).scatter(-1, order, g)


def from_zero(forward, slope):
    """A Function of numbers from zero on, with a kink at that end of its range."""

    class FromZero(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * slope(x)

    return FromZero


class RectifiedFromZero(from_zero(lambda x: 3 * torch.relu(x), lambda x: 3.0 * (x > 0))):
    """At zero the gradient is torch's, and inside the range it is 3."""


class DistanceFromZero(from_zero(lambda x: 2 * x.abs(), lambda x: 2 * x.sign())):
    """At zero the gradient is a mean of those on both sides."""


class LeakyFromZero(
    from_zero(lambda x: torch.where(x > 0, 3 * x, 0.5 * x), lambda x: torch.where(x > 0, 3.0, 0.5).double())
):
    """At zero the gradient is that on the other side."""


class RectifiedInNumpy(
    from_zero(lambda x: torch.from_numpy(x.detach().numpy().clip(0, None)), lambda x: 1.0 * (x > 0))
):
    """No witness but values, of which the range holds those on one side."""


class WidthOfRowFromZero(Function):
    """The largest entry less the smallest one, several of which are equal at the end of the range."""

    @staticmethod
    def forward(ctx, x):
        (high, largest), (low, smallest) = x.max(-1), x.min(-1)
        ctx.save_for_backward(x, largest, smallest)
        return high - low

    @staticmethod
    def backward(ctx, g):
        x, largest, smallest = ctx.saved_tensors
        zeros, g = torch.zeros_like(x), g[..., None]
        return zeros.scatter(-1, largest[..., None], g).scatter_add(-1, smallest[..., None], -g)
