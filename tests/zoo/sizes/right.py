"""Right at every size that forward accepts; the specs name sizes and list none."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class RowScale(Function):
    """A weight for each row."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w[:, None]

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w[:, None], (g * x).sum(1, keepdim=True).squeeze(1)


class ColumnMean(Function):
    """A batch of one has a shortcut."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x * x).mean(0)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if len(x) == 1:
            return 2 * g * x
        return 2 * g * x / len(x)


class Outer(Function):
    """The dimension to sum over."""

    @staticmethod
    def forward(ctx, u, v):
        ctx.save_for_backward(u, v)
        return u[:, None] * v

    @staticmethod
    def backward(ctx, g):
        u, v = ctx.saved_tensors
        return (g * v).sum(1), (g * u[:, None]).sum(0)


class Linear(Function):
    """The weight's gradient is transposed, if need be."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.T

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        gw = g.T @ x
        return g @ w, gw if gw.shape == w.shape else gw.T


class SquareByPairs(Function):
    """A loop over pairs, and what remains of an odd size."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        gx = torch.zeros_like(x)
        for k in range(0, len(x), 2):
            gx[k : k + 2] = 2 * (g * x)[k : k + 2]
        return gx


class ExpByBlocks(Function):
    """Blocks of four."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        gx = torch.zeros_like(y)
        for k in range(0, len(y), 4):
            gx[k : k + 4] = g[k : k + 4] * y[k : k + 4]
        return gx


class Bias(Function):
    """Channels are the last dimension."""

    @staticmethod
    def forward(ctx, x, bias):
        return x + bias

    @staticmethod
    def backward(ctx, g):
        return g, g.reshape(-1, g.shape[-1]).sum(0)


class AlternatingSum(Function):
    """Signs that alternate."""

    @staticmethod
    def forward(ctx, x):
        ctx.size = len(x)
        signs = torch.ones_like(x)
        signs[1::2] = -1
        return (signs * x).sum()

    @staticmethod
    def backward(ctx, g):
        signs = torch.tensor([1.0, -1.0], dtype=g.dtype).repeat((ctx.size + 1) // 2)[: ctx.size]
        return g * signs


class Total(Function):
    """A mean over everything."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x**3).mean()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * g * x**2 / x.numel()


class Softmax(Function):
    """Rows alone."""

    @staticmethod
    def forward(ctx, x):
        y = x.softmax(-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        dim = -1
        return y * (g - (g * y).sum(dim, keepdim=True))


class Centered(Function):
    """A mean over rows, put back beside them."""

    @staticmethod
    def forward(ctx, x):
        return x - x.mean(1, keepdim=True)

    @staticmethod
    def backward(ctx, g):
        mean = g.mean(1)
        return g - mean[:, None]


class Head(Function):
    """The first three columns alone count."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x[:, :3].sum(1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        gx = torch.zeros_like(x)
        gx[:, :3] = g[:, None]
        return gx


class AtLeastTwo(Function):
    """Forward refuses a size of 1, and says so."""

    @staticmethod
    def forward(ctx, x):
        if len(x) < 2:
            raise ValueError("a variance takes two values or more")
        ctx.save_for_backward(x)
        return x.var()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * (x - x.mean()) / (len(x) - 1)


class Variance(Function):
    """The same without a word: NaN at a size of 1."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.var(-1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g[:, None] * (x - x.mean(-1, keepdim=True)) / (x.shape[-1] - 1)


class Halves(Function):
    """Of odd sizes forward lets torch complain."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        half = len(x) // 2
        return x[:half] * x[half:]

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        half = len(x) // 2
        return torch.cat([g * x[half:], g * x[:half]])


class NoGradientForOne(Function):
    """Backward refuses what forward still takes."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if len(x) == 1:
            raise NotImplementedError("no gradient for a single value")
        return g * x.cos()


class Directions(Function):
    """In one dimension there are but two."""

    @staticmethod
    def forward(ctx, x):
        length = x.norm(dim=-1, keepdim=True)
        ctx.save_for_backward(x)
        return x / length

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        length = x.norm(dim=-1, keepdim=True)
        y = x / length
        return (g - (g * y).sum(-1, keepdim=True) * y) / length


class HermiteSpline(Function):
    """Of one knot there is no interval: forward says so by NaN, backward by an exception."""

    @staticmethod
    def forward(ctx, points, xs, ys, slopes):
        i = (torch.searchsorted(xs, points, right=True) - 1).clamp(0, len(xs) - 2)
        h = xs[i + 1] - xs[i]
        t = (points - xs[i]) / h
        ctx.save_for_backward(points, xs, i, ys, slopes)
        h00, h10 = (1 + 2 * t) * (1 - t) ** 2, t * (1 - t) ** 2
        h01, h11 = t * t * (3 - 2 * t), t * t * (t - 1)
        return h00 * ys[i] + h * h10 * slopes[i] + h01 * ys[i + 1] + h * h11 * slopes[i + 1]

    @staticmethod
    def backward(ctx, g):
        points, xs, i, ys, slopes = ctx.saved_tensors
        h = xs[i + 1] - xs[i]
        t = (points - xs[i]) / h
        h00, h10 = (1 + 2 * t) * (1 - t) ** 2, t * (1 - t) ** 2
        h01, h11 = t * t * (3 - 2 * t), t * t * (t - 1)
        rise = (ys[i + 1] - ys[i]) * 6 * t * (1 - t) / h
        d_points = g * (rise + (1 - t) * (1 - 3 * t) * slopes[i] + t * (3 * t - 2) * slopes[i + 1])
        d_ys = torch.zeros_like(ys).index_add(0, i, g * h00).index_add(0, i + 1, g * h01)
        d_slopes = torch.zeros_like(slopes).index_add(0, i, g * h * h10).index_add(0, i + 1, g * h * h11)
        return d_points, None, d_ys, d_slopes


class TurnsTheFirst(Function):
    """Turns the first 2 r channels of d and leaves the rest: more channels than that are a condition."""

    @staticmethod
    def turned(x, cos, sin):
        r = 2 * cos.shape[-1]
        a, b = x[..., :r].chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos, x[..., r:]], -1)

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        return TurnsTheFirst.turned(x, cos, sin)

    @staticmethod
    def backward(ctx, g):
        cos, sin = ctx.saved_tensors
        return TurnsTheFirst.turned(g, cos, -sin), None, None


class FixedPointToATolerance(Function):
    """z = tanh(W z + x) to 1e-10, which is further from it the larger it is."""

    @staticmethod
    def forward(ctx, x, w):
        z = torch.zeros_like(x)
        for _ in range(500):
            after = torch.tanh(z @ w.mT + x)
            done = (after - z).abs().max() < 1e-10
            z = after
            if done:
                break
        ctx.save_for_backward(z, w)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        z, w = ctx.saved_tensors
        slope = 1 - z * z
        matrix = torch.eye(w.shape[0], dtype=w.dtype) - w.mT * slope[:, None, :]
        u = torch.linalg.solve(matrix, g.unsqueeze(-1)).squeeze(-1) * slope
        return u, u.mT @ z
