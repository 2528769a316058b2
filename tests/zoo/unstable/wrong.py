"""Right in float64, and in float32 unstable at their declared ranges: in forward, or in backward alone."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Softmax(Function):
    @staticmethod
    def forward(ctx, x):
        e = x.exp()
        y = e / e.sum(-1, keepdim=True)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(-1, keepdim=True))


class LogSumExp(Function):
    @staticmethod
    def forward(ctx, x):
        s = x.exp().sum(-1)
        ctx.save_for_backward(x, s)
        return s.log()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, s = ctx.saved_tensors
        return g[..., None] * x.exp() / s[..., None]


class Variance(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x * x).mean(-1) - x.mean(-1) ** 2

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g[..., None] * 2 * (x - x.mean(-1, keepdim=True)) / x.shape[-1]


class LogProduct(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.prod(-1).log()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g[..., None] / x


class Sigmoid(Function):
    @staticmethod
    def forward(ctx, x):
        e = x.exp()
        y = e / (1 + e)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y * (1 - y)


class SoftplusBackward(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.logaddexp(x, torch.zeros_like(x))

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        e = x.exp()
        return g * e / (1 + e)


class LogCoshBackward(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        a = x.abs()
        return a + torch.log1p(torch.exp(-2 * a)) - 0.6931471805599453

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.sinh() / x.cosh()


class UnitVector(Function):
    @staticmethod
    def forward(ctx, x):
        n = x.norm(dim=-1, keepdim=True)
        ctx.save_for_backward(x, n)
        return x / n

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, n = ctx.saved_tensors
        return g / n - x * (x * g).sum(-1, keepdim=True) / n**3


class OneMinusCos(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (1 - x.cos()) / (x * x)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x * x.sin() - 2 * (1 - x.cos())) / x**3


class Hypot(Function):
    @staticmethod
    def forward(ctx, a, b):
        r = (a * a + b * b).sqrt()
        ctx.save_for_backward(a, b, r)
        return r

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        a, b, r = ctx.saved_tensors
        return g * a / r, g * b / r


class SquareDistance(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return (a * a).sum(-1) - 2 * (a * b).sum(-1) + (b * b).sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        d = 2 * (a - b) * g[..., None]
        return d, -d


class ConjugateRoot(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x + 1).sqrt() - x.sqrt()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 0.5 * (1 / (x + 1).sqrt() - 1 / x.sqrt())


class LogOnePlus(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (1 + x).log()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / (1 + x)


class DeviationBackward(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.std(-1, unbiased=False)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        m = x.mean(-1, keepdim=True)
        s = ((x * x).mean(-1, keepdim=True) - m * m).sqrt()
        return g[..., None] * (x - m) / s / x.shape[-1]


class GeometricMean(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.prod(-1) ** (1 / x.shape[-1])
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return (g * y)[..., None] / x / x.shape[-1]


class LogOfSoftmax(Function):
    @staticmethod
    def forward(ctx, x):
        p = x.softmax(-1)
        ctx.save_for_backward(p)
        return p.log()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (p,) = ctx.saved_tensors
        return g - p * g.sum(-1, keepdim=True)


class LogProductBackward(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.log().sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        p = x.prod(-1, keepdim=True)
        return g[..., None] * (p / x) / p


class TanhByExponentials(Function):
    @staticmethod
    def forward(ctx, x):
        a, b = x.exp(), (-x).exp()
        y = (a - b) / (a + b)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * (1 - y * y)


class QuadraticRoot(Function):
    @staticmethod
    def forward(ctx, b, c):
        d = (b * b + c).sqrt()
        ctx.save_for_backward(b, d)
        return (d - b) / 2

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        b, d = ctx.saved_tensors
        return g * (b / d - 1) / 2, g / (4 * d)


class LogSumExpBackward(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.logsumexp(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        e = x.exp()
        return g[..., None] * e / e.sum(-1, keepdim=True)


class LogitLoss(Function):
    """Its exponential overflows; its second derivative meets zeros that torch keeps without memory."""

    @staticmethod
    def forward(ctx, x, t):
        ctx.save_for_backward(x, t)
        return x.clamp_min(0) - x * t + torch.log1p(torch.exp(-x.abs()))

    @staticmethod
    def backward(ctx, g):
        x, t = ctx.saved_tensors
        e = torch.exp(x)
        return g * (e / (1 + e) - t), None
