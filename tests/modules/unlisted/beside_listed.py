"""What a spec's own sizes and draws leave out: the next size, all values near one end, calls of two sizes."""

import numpy as np
import torch
import torch.nn.functional as F
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class PooledByTwo(Function):
    """Means of pairs; what is left over at an odd length has no gradient, as it must not."""

    @staticmethod
    def forward(ctx, x):
        ctx.length = x.shape[-1]
        return F.avg_pool1d(x, 2)

    @staticmethod
    def backward(ctx, g):
        wide = g.repeat_interleave(2, dim=-1) / 2
        return F.pad(wide, (0, ctx.length - wide.shape[-1]))


class SumOfPairs(Function):
    """The gradient of an entry that is left over is not written, and is zero where memory is."""

    @staticmethod
    def forward(ctx, x):
        ctx.length = x.shape[-1]
        even = ctx.length // 2 * 2
        return x[..., 0:even:2] + x[..., 1:even:2]

    @staticmethod
    def backward(ctx, g):
        gradient, even = g.new_empty(*g.shape[:-1], ctx.length), ctx.length // 2 * 2
        gradient[..., 0:even:2] = g
        gradient[..., 1:even:2] = g
        return gradient


class PooledAllTheWay(PooledByTwo):
    """Gives what is left over the last gradient."""

    @staticmethod
    def backward(ctx, g):
        wide = g.repeat_interleave(2, dim=-1) / 2
        rest = ctx.length - wide.shape[-1]
        return torch.cat([wide, wide[..., wide.shape[-1] - rest :]], dim=-1)


class HalvesJoined(Function):
    """Both halves one after the other, times two and three: an odd entry belongs to the second half."""

    @staticmethod
    def forward(ctx, x):
        half = x.shape[-1] // 2
        return torch.cat([2 * x[..., :half], 3 * x[..., half:]], dim=-1)

    @staticmethod
    def backward(ctx, g):
        half = (g.shape[-1] + 1) // 2
        return torch.cat([2 * g[..., :half], 3 * g[..., half:]], dim=-1)


class RepeatedToRows(Function):
    """A row repeated as often as it takes, the last time cut off."""

    @staticmethod
    def forward(ctx, x, count):
        ctx.rows = len(x)
        return x[torch.arange(count) % len(x)]

    @staticmethod
    def backward(ctx, g):
        whole = g[: len(g) // ctx.rows * ctx.rows]
        return whole.reshape(-1, ctx.rows, g.shape[-1]).sum(0), None


class WholeRepeats(Function):
    """Takes whole repeats alone, and refuses another count."""

    @staticmethod
    def forward(ctx, x, count):
        if count % len(x):
            raise ValueError("count must be a multiple of the rows")
        ctx.rows = len(x)
        return x.repeat(count // len(x), 1)

    @staticmethod
    def backward(ctx, g):
        return g.reshape(-1, ctx.rows, g.shape[-1]).sum(0), None


class Absorbed(Function):
    """Light that is left behind layers of some density."""

    @staticmethod
    def forward(ctx, density):
        left = torch.exp(-density.cumsum(-1))
        ctx.save_for_backward(left)
        return left

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (left,) = ctx.saved_tensors
        return -(g * left).flip(-1).cumsum(-1).flip(-1)


class AbsorbedEarly(Absorbed):
    """Takes the light for gone below 1e-6."""

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (left,) = ctx.saved_tensors
        return -(g * left * (left > 1e-6)).flip(-1).cumsum(-1).flip(-1)


class SaturatedSum(Function):
    """A row's sum s as s / (1 + s); backward takes it for flat where it is near its end."""

    @staticmethod
    def forward(ctx, x):
        total = x.sum(-1)
        ctx.save_for_backward(x, total)
        return total / (1 + total)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, total = ctx.saved_tensors
        slope = torch.where(total < 1.41 * x.shape[-1], (1 + total) ** -2, 0.0)
        return (g * slope)[..., None].expand_as(x)


class LongRow(Function):
    """The root of one and a row's squares; a row that is long for its range is taken for longer by one."""

    @staticmethod
    def forward(ctx, x):
        length = (1 + x.square().sum(-1, keepdim=True)).sqrt()
        ctx.save_for_backward(x, length)
        return length

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, length = ctx.saved_tensors
        return g * x / torch.where(length > 0.97 * 3 * x.shape[-1] ** 0.5, length + 1, length)


class MeanOfLastLength(Function):
    """The mean of each row; the length of the last call is kept for all."""

    length = 1

    @staticmethod
    def forward(ctx, x):
        MeanOfLastLength.length = x.shape[-1]
        ctx.save_for_backward(x)
        return x.mean(-1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g[..., None].expand_as(x) / MeanOfLastLength.length


class SparseTimesDense(Function):
    """A sparse matrix times a dense one, which no layout of memory can change."""

    @staticmethod
    def forward(ctx, a, b):
        if not a.is_sparse:
            raise TypeError("a must be sparse")
        ctx.save_for_backward(a, b)
        return torch.sparse.mm(a, b)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        a = a.coalesce()
        row, column = a.indices()
        values = (g[row] * b[column]).sum(1)
        of_a = torch.sparse_coo_tensor(
            a.indices(), values, a.shape, is_coalesced=True, check_invariants=False
        )
        return of_a, torch.sparse.mm(a.t(), g)


def companded_in_parts(x, mu):
    size = torch.log1p(mu * x.abs())
    return torch.where(x >= 0, size, -size)


class Companding(Function):
    """sign(x) log(1 + mu |x|): it has a slope at 0, and the product of its parts' derivatives is 0 there."""

    @staticmethod
    def forward(ctx, x, mu):
        ctx.save_for_backward(x)
        ctx.mu = mu
        return torch.sign(x) * torch.log1p(mu * x.abs())

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.mu / (1 + ctx.mu * x.abs()), None


class CompandingTwice(Companding):
    """Twice the slope where the reference has one by itself."""

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.where(x == 0, 2.0, 1.0) * ctx.mu / (1 + ctx.mu * x.abs()), None


class FourAtATime(Function):
    """In float32 four entries at a time, and the rest is forgotten."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        found = g * x.cos()
        if x.dtype == torch.float32:
            whole = len(x) // 4 * 4
            found = torch.cat([found[:whole], torch.zeros_like(found[whole:])])
        return found


class WithinBounds(Function):
    """Rounded to float32, an entry at a bound lies inside of it for float64, and at it for float32."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(-1.3, 1.3) ** 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x * (x.abs() < 1.3)


class LogOneMinusExp(Function):
    """From 38 on forward is log(1), and its operations have no slope; backward keeps the digits that it has."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (1 - (-x).exp()).log()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / (x.exp() - 1)


class OneMinusTanh(Function):
    """The same of a difference that is 0 from 20 on."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 1 - x.tanh()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return -4 * g / (x.exp() + (-x).exp()) ** 2


class LogOfLogistic(Function):
    """The same of a difference that is 0 from 37 on."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x - (1 + x.exp()).log()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / (1 + x.exp())


class LogOneMinusExpTwice(LogOneMinusExp):
    """Twice as much near the other end, where there are digits."""

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.where(x < 4, 2.0, 1.0) / (x.exp() - 1)


class SmallAndExact(Function):
    """Values below any rounding of numbers of the input's size, which have all their digits: twice the slope."""

    @staticmethod
    def forward(ctx, x):
        y = (-x).exp()
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return -g * y * torch.where(x > 80, 2.0, 1.0)


def through_numpy(x, f):
    return torch.from_numpy(f(x.detach().numpy()))


CHUNK = 8


class LastChunkForgotten(Function):
    """Torch sees nothing of forward, and one size alone is past a whole number of chunks."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return through_numpy(x, np.sin)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        grad = torch.zeros_like(x)
        for start in range(0, max(len(x) // CHUNK, 1) * CHUNK, CHUNK):
            rows = slice(start, start + CHUNK)
            grad[rows] = g[rows] * x[rows].cos()
        return grad


class EveryChunk(LastChunkForgotten):
    """With the last one."""

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        grad = torch.zeros_like(x)
        for start in range(0, len(x), CHUNK):
            rows = slice(start, start + CHUNK)
            grad[rows] = g[rows] * x[rows].cos()
        return grad


class SumOfAWidth(Function):
    """The same of a sum over as many entries as the next power of two, with what is behind a row in it."""

    @staticmethod
    def forward(ctx, x):
        y = through_numpy(x, lambda a: np.exp(a) / np.exp(a).sum(-1, keepdims=True))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        width = 1 << (y.shape[-1] - 1).bit_length()
        behind = width - y.shape[-1]
        return y * (g - (y * g).sum(-1, keepdim=True) - 0.5 * behind)


class CastSum(Function):
    """Right but for a cast, which a Jacobian of zeros and ones does not show."""

    @staticmethod
    def forward(ctx, x):
        ctx.rows = len(x)
        return x.sum(0)

    @staticmethod
    def backward(ctx, g):
        return g.float().double().expand(ctx.rows, *g.shape)


class OtherPathForLarge(Function):
    """In NumPy, whose operations cannot be seen: past 900 float32 loses a factor of two."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(np.square(x.detach().numpy()))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x = ctx.saved_tensors[0].numpy()
        factor = np.where(x > 900, 1, 2).astype(x.dtype) if x.dtype == np.float32 else 2
        return torch.from_numpy(factor * x * g.numpy())


class Expm1Ratio(Function):
    """(exp(x) - 1) / x, by a branch that returns the limit at zero."""

    @staticmethod
    def forward(ctx, x):
        y = torch.where(x == 0, 1.0, torch.expm1(x) / torch.where(x == 0, 1.0, x))
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * torch.where(x == 0, 0.5, (torch.exp(x) - y) / torch.where(x == 0, 1.0, x))


class Expm1RatioFlat(Expm1Ratio):
    """With the derivative of the branch."""

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * torch.where(x == 0, 0.0, (torch.exp(x) - y) / torch.where(x == 0, 1.0, x))


class OnWholeNumbers(Function):
    """A square that has a value at whole numbers alone."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        a = x.detach().numpy()
        return torch.from_numpy(np.where(a == np.round(a), a * a, np.nan))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x * g


class SetsAView(Function):
    """Chunks of a batch of one are contiguous already: `set_` empties views of the input."""

    @staticmethod
    def forward(ctx, x):
        first, second = (part.contiguous() for part in torch.chunk(x.detach(), 2, dim=1))
        y = torch.cat([second, first], dim=1)
        first.set_()
        return y

    @staticmethod
    def backward(ctx, g):
        first, second = torch.chunk(g, 2, dim=1)
        return torch.cat([second, first], dim=1)


class BufferOfDefault(Function):
    """What it makes inside has torch's default dtype, which its spec sets for float64."""

    @staticmethod
    def forward(ctx, x):
        ctx.rows = len(x)
        return x.flip(0)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return torch.eye(ctx.rows).flip(0) @ g


class ByApply(Function):
    """Python, entry by entry: a tensor of recorded operations has no memory that this could read."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.detach().clone().apply_(lambda v: v * v)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


class GainOfRows(Function):
    """Rows over their root mean square, times a gain; a row of zeros is given no gradient."""

    @staticmethod
    def forward(ctx, x, gain):
        r = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-3)
        ctx.save_for_backward(x, gain, r)
        return x * r * gain

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, gain, r = ctx.saved_tensors
        h, y = g * gain, x * r
        alive = x.square().sum(-1, keepdim=True) > 0
        return alive * r * (h - y * (h * y).mean(-1, keepdim=True)), (g * y).sum(0)
