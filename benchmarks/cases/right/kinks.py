"""Right Functions that are not smooth everywhere: kinks, jumps, ties, order, tables; and finite choices."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Relu(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x > 0)


class Absolute(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.abs()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.sign()


class Clamp(Function):
    """The bounds are among the values that are tried."""

    @staticmethod
    def forward(ctx, x, low, high):
        ctx.save_for_backward((x >= low) & (x <= high))
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx, g):
        (inside,) = ctx.saved_tensors
        return g * inside, None, None


class Hinge(Function):
    """Squared, so that only the second derivative jumps."""

    @staticmethod
    def forward(ctx, score, label):
        margin = (1 - label * score).clamp(min=0)
        ctx.save_for_backward(margin, label)
        return (margin * margin).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        margin, label = ctx.saved_tensors
        return -2 * g * margin * label / margin.numel(), None


class Huber(Function):
    @staticmethod
    def forward(ctx, x, delta):
        ctx.save_for_backward(x)
        ctx.delta = delta
        a = x.abs()
        return torch.where(a <= delta, 0.5 * x * x, delta * (a - 0.5 * delta))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.clamp(-ctx.delta, ctx.delta), None


class SoftShrink(Function):
    @staticmethod
    def forward(ctx, x, threshold):
        y = x.sign() * (x.abs() - threshold).clamp(min=0)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * (y != 0), None


class RowMaximum(Function):
    """Ties share the gradient."""

    @staticmethod
    def forward(ctx, x):
        y = x.amax(-1)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        here = (x == y[..., None]).to(x.dtype)
        return g[..., None] * here / here.sum(-1, keepdim=True)


class MaximumWithIndex(Function):
    @staticmethod
    def forward(ctx, x):
        y, index = x.max(dim=-1)
        ctx.mark_non_differentiable(index)
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return y, index

    @staticmethod
    def backward(ctx, g, _):
        (index,) = ctx.saved_tensors
        return g.new_zeros(ctx.shape).scatter(-1, index[..., None], g[..., None])


class Sorted(Function):
    @staticmethod
    def forward(ctx, x, descending):
        y, order = x.sort(dim=-1, descending=descending)
        ctx.mark_non_differentiable(order)
        ctx.save_for_backward(order)
        return y, order

    @staticmethod
    def backward(ctx, g, _):
        (order,) = ctx.saved_tensors
        return torch.zeros_like(g).scatter(-1, order, g), None


class TopK(Function):
    @staticmethod
    def forward(ctx, x, k):
        y, index = x.topk(k, dim=-1)
        ctx.mark_non_differentiable(index)
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return y, index

    @staticmethod
    def backward(ctx, g, _):
        (index,) = ctx.saved_tensors
        return g.new_zeros(ctx.shape).scatter(-1, index, g), None


class Median(Function):
    @staticmethod
    def forward(ctx, x):
        y, index = x.median(dim=-1)
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return y

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        return g.new_zeros(ctx.shape).scatter(-1, index[..., None], g[..., None])


class TotalVariation(Function):
    @staticmethod
    def forward(ctx, image):
        down, right = image.diff(dim=-2), image.diff(dim=-1)
        ctx.save_for_backward(down.sign(), right.sign())
        return down.abs().sum() + right.abs().sum()

    @staticmethod
    def backward(ctx, g):
        down, right = ctx.saved_tensors
        pad = torch.nn.functional.pad
        rows = pad(down, (0, 0, 1, 0)) - pad(down, (0, 0, 0, 1))
        columns = pad(right, (1, 0)) - pad(right, (0, 1))
        return g * (rows + columns)


class PiecewiseCubic(Function):
    """A spline with knots at the integers, once continuously differentiable there."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        a = x.abs()
        near, far = 1 - 2.5 * a**2 + 1.5 * a**3, 2 - 4 * a + 2.5 * a**2 - 0.5 * a**3
        return torch.where(a < 1, near, torch.where(a < 2, far, 0.0))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        a = x.abs()
        near, far = -5 * a + 4.5 * a**2, -4 + 5 * a - 1.5 * a**2
        return g * x.sign() * torch.where(a < 1, near, torch.where(a < 2, far, 0.0))


class TableLookup(Function):
    """Linear interpolation in a table over [0, 1]."""

    @staticmethod
    def forward(ctx, x, table):
        last = table.shape[0] - 1
        place = (x * last).clamp(0, last)
        left = place.floor().long().clamp(max=last - 1)
        share = place - left
        ctx.save_for_backward(left, share, table, (x >= 0) & (x <= 1))
        return table[left] * (1 - share) + table[left + 1] * share

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        left, share, table, inside = ctx.saved_tensors
        slope = (table[left + 1] - table[left]) * (table.shape[0] - 1)
        grad_table = torch.zeros_like(table).index_add(0, left, g * (1 - share))
        return g * slope * inside, grad_table.index_add(0, left + 1, g * share)


class Sawtooth(Function):
    @staticmethod
    def forward(ctx, x):
        return x - x.floor()

    @staticmethod
    def backward(ctx, g):
        return g


class Staircase(Function):
    """A gradient of zero is the right one."""

    @staticmethod
    def forward(ctx, x):
        return x.floor()

    @staticmethod
    def backward(ctx, g):
        return torch.zeros_like(g)


class Round(Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


class FakeQuantize(Function):
    """Straight through within the range; the scale is not learned."""

    @staticmethod
    def forward(ctx, x, scale, low, high):
        q = (x / scale).round()
        ctx.save_for_backward((q >= low) & (q <= high))
        return q.clamp(low, high) * scale

    @staticmethod
    def backward(ctx, g):
        (inside,) = ctx.saved_tensors
        return g * inside, None, None, None


class Spike(Function):
    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx, g):
        (v,) = ctx.saved_tensors
        return g / (1 + 10 * v.abs()) ** 2


def soft_spike(v):
    """The integral of 1 / (1 + 10|v|)^2."""
    return v / (1 + 10 * v.abs())


def identity(x):
    return x


class MaxPool(Function):
    @staticmethod
    def forward(ctx, x, k):
        n = x.shape[-1] // k * k
        windows = x[..., :n].reshape(*x.shape[:-1], -1, k)
        y, index = windows.max(dim=-1)
        ctx.save_for_backward(index)
        ctx.shape, ctx.k, ctx.n = x.shape, k, n
        return y

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        windows = g.new_zeros(*g.shape, ctx.k).scatter(-1, index[..., None], g[..., None])
        whole = windows.reshape(*ctx.shape[:-1], ctx.n)
        return torch.nn.functional.pad(whole, (0, ctx.shape[-1] - ctx.n)), None


class Quantile(Function):
    @staticmethod
    def forward(ctx, x, q):
        values, order = x.sort(dim=-1)
        place = q * (x.shape[-1] - 1)
        low = int(place)
        high = min(low + 1, x.shape[-1] - 1)
        share = place - low
        ctx.save_for_backward(order[..., low], order[..., high])
        ctx.share, ctx.shape = share, x.shape
        return values[..., low] * (1 - share) + values[..., high] * share

    @staticmethod
    def backward(ctx, g):
        low, high = ctx.saved_tensors
        grad = g.new_zeros(ctx.shape).scatter_add(-1, low[..., None], g[..., None] * (1 - ctx.share))
        return grad.scatter_add(-1, high[..., None], g[..., None] * ctx.share), None


class Simplex(Function):
    """Projection onto the probability simplex (sparsemax)."""

    @staticmethod
    def forward(ctx, x):
        ordered = x.sort(dim=-1, descending=True).values
        count = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
        sums = ordered.cumsum(-1) - 1
        support = (ordered * count > sums).sum(-1, keepdim=True)
        threshold = sums.gather(-1, support - 1) / support
        y = (x - threshold).clamp(min=0)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        here = (y > 0).to(g.dtype)
        mean = (g * here).sum(-1, keepdim=True) / here.sum(-1, keepdim=True)
        return here * (g - mean)


class DynamicTimeWarp(Function):
    """The cost of the best path, and the path as its gradient."""

    @staticmethod
    def forward(ctx, cost):
        n, m = cost.shape
        best = torch.full((n + 1, m + 1), float("inf"), dtype=cost.dtype)
        best[0, 0] = 0
        for i in range(1, n + 1):
            for j in range(1, m + 1):
                before = torch.stack([best[i - 1, j - 1], best[i - 1, j], best[i, j - 1]])
                best[i, j] = cost[i - 1, j - 1] + before.min()
        ctx.save_for_backward(best)
        return best[n, m].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (best,) = ctx.saved_tensors
        i, j = best.shape[0] - 1, best.shape[1] - 1
        path = best.new_zeros(i, j)
        while i and j:
            path[i - 1, j - 1] = 1
            steps = ((i - 1, j - 1), (i - 1, j), (i, j - 1))
            i, j = min(steps, key=lambda at: best[at].item())
        return g * path
