"""Mistakes of the kinds that people report, one in each backward."""

import torch
from torch.autograd import Function


class MissingFactor(Function):
    @staticmethod
    def forward(ctx, x, scale: float = 0.5):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return torch.sin(x * scale)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.cos(x * ctx.scale), None


class WrongSaved(Function):
    @staticmethod
    def forward(ctx, x, w):
        y = torch.sigmoid(x)
        ctx.save_for_backward(x, w)
        return y * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        s = torch.sigmoid(x)
        return g * w * x * (1 - s), g * s


class UnreducedGather(Function):
    """gather whose backward scatters by assignment"""

    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.n = x.shape[0]
        return x[index]

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        out = g.new_zeros(ctx.n, *g.shape[1:])
        out[index] = g
        return out, None


class IgnoresGrad(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return x.exp()


class WritesGrad(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g.mul_(1 - x.tanh() ** 2)


class MeanNotDivided(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return ((x - y) ** 2).mean()

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        d = 2 * (x - y) * g
        return d, -d


class SignFlipped(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a / b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g / b, g * a / (b * b)


class WrongDim(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(0, keepdim=True))


class SegmentPointer(Function):
    """csr sum: uses the row's start for its end"""

    @staticmethod
    def forward(ctx, x, rowptr):
        ctx.save_for_backward(rowptr)
        ctx.n = x.shape[0]
        return torch.stack([x[int(a) : int(b)].sum(0) for a, b in zip(rowptr[:-1], rowptr[1:])])

    @staticmethod
    def backward(ctx, g):
        (rowptr,) = ctx.saved_tensors
        out = g.new_zeros(ctx.n, *g.shape[1:])
        for i in range(rowptr.numel() - 1):
            out[int(rowptr[i]) : int(rowptr[i + 1]) - 1] = g[i]
        return out, None


class DetachedMean(Function):
    @staticmethod
    def forward(ctx, x):
        m = x.mean(-1, keepdim=True)
        ctx.save_for_backward(x)
        return x - m

    @staticmethod
    def backward(ctx, g):
        return g


class WritesInAStatement(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        g *= x.cos()
        return g


class WritesZeros(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp_min(0.0)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        g[x < 0] = 0.0
        return g


class Temperature(Function):
    """The temperature is lost; of the default, its inverse is two."""

    @staticmethod
    def forward(ctx, x, temperature: float = 0.5):
        y = torch.softmax(x / temperature, -1)
        ctx.save_for_backward(y)
        ctx.temperature = temperature
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(-1, keepdim=True)), None


class WritesBeforeUse(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        grad_x = g.mul_(w)
        return grad_x, g * x


class TransposeForgotten(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w, x.t() @ g


class TransposedGradient(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.t(), g.t() @ x


class Squeezed(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.pow(2).sum(1, keepdim=True)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g.squeeze()


class CutByAnAttribute(Function):
    @staticmethod
    def forward(ctx, x, w):
        y = torch.tanh(x * w)
        ctx.save_for_backward(x, w)
        ctx.y = y.detach()
        return y

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        d = g * (1 - ctx.y**2)
        return d * w, d * x


class CutByWhatIsSaved(Function):
    @staticmethod
    def forward(ctx, x, w):
        s = torch.sigmoid(x)
        ctx.save_for_backward(x, w, s)
        return s * w

    @staticmethod
    def backward(ctx, g):
        x, w, s = ctx.saved_tensors
        return g * w * s * (1 - s), g * s


class CutTwice(Function):
    @staticmethod
    def forward(ctx, x, eps: float = 1e-3):
        centred = x - x.mean(-1, keepdim=True)
        r = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
        normalized = centred * r
        ctx.save_for_backward(x, normalized, r)
        ctx.eps = eps
        return normalized * 1

    @staticmethod
    def backward(ctx, g):
        x, n, r = ctx.saved_tensors
        return r * (g - g.mean(-1, keepdim=True) - n * (g * n).mean(-1, keepdim=True)), None


class CutByMode(Function):
    @staticmethod
    def forward(ctx, x, w, square: bool = False):
        s = torch.sigmoid(x)
        ctx.square = square
        ctx.save_for_backward(x, w, s)
        return s * w * w if square else s * w

    @staticmethod
    def backward(ctx, g):
        x, w, s = ctx.saved_tensors
        if ctx.square:
            return g * w * w * s * (1 - s), g * 2 * w * s, None
        return g * w * s * (1 - s), g * s, None


class FrozenByIndex(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        gx = g @ w if ctx.needs_input_grad[0] else None
        gw = g.t() @ x if ctx.needs_input_grad[0] else None
        return gx, gw


class FrozenTogether(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return (g * w, g * x) if ctx.needs_input_grad[0] else (None, None)


class FrozenInOneBranch(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        gx = gw = None
        if ctx.needs_input_grad[0]:
            gx = g * w
            gw = g * x
        return gx, gw


class FrozenByName(Function):
    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w)
        return x @ w.t() + b

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        nx, nw, nb = ctx.needs_input_grad
        gx = g @ w if nx else None
        gw = g.t() @ x if nw else None
        gb = g.sum(0) if nw else None
        return gx, gw, gb
