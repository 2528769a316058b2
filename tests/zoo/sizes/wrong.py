"""Wrong at one kind of size only: 1, odd, square, no multiple. The specs name sizes and list none."""

import torch
from torch.autograd import Function


class RowScale(Function):
    """A weight for each row."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w[:, None]

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w[:, None], (g * x).sum(1, keepdim=True).squeeze()


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
            return g * x
        return 2 * g * x / len(x)


class Outer(Function):
    """The dimension to sum over, found by its size."""

    @staticmethod
    def forward(ctx, u, v):
        ctx.save_for_backward(u, v)
        return u[:, None] * v

    @staticmethod
    def backward(ctx, g):
        u, v = ctx.saved_tensors
        return (g * v).sum(list(g.shape).index(len(v))), (g * u[:, None]).sum(0)


class Linear(Function):
    """The weight's gradient is transposed, if need be."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.T

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        gw = x.T @ g
        return g @ w, gw if gw.shape == w.shape else gw.T


class SquareByPairs(Function):
    """A loop over pairs."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        gx = torch.zeros_like(x)
        for k in range(0, len(x) // 2 * 2, 2):
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
        for k in range(0, len(y) - 3, 4):
            gx[k : k + 4] = g[k : k + 4] * y[k : k + 4]
        return gx


class Bias(Function):
    """Channels are the last dimension."""

    @staticmethod
    def forward(ctx, x, bias):
        return x + bias

    @staticmethod
    def backward(ctx, g):
        return g, g.reshape(-1, 3).sum(0)


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
        signs = torch.tensor([1.0, -1.0], dtype=g.dtype).repeat(ctx.size // 2)
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
        return 3 * g * x**2 / 12


class Softmax(Function):
    """What has one row is taken for a column."""

    @staticmethod
    def forward(ctx, x):
        y = x.softmax(-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        dim = 0 if y.shape[0] == 1 else -1
        return y * (g - (g * y).sum(dim, keepdim=True))


class Centered(Function):
    """A mean over rows, put back beside them."""

    @staticmethod
    def forward(ctx, x):
        return x - x.mean(1, keepdim=True)

    @staticmethod
    def backward(ctx, g):
        mean = g.mean(1)
        return g - (mean if mean.shape == g.shape[1:] else mean[:, None])


class Head(Function):
    """The first three columns alone count."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x[:, :3].sum(1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        gx = torch.ones_like(x) * g[:, None]
        gx[:, :3] = g[:, None]
        return gx
