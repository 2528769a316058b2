"""Stable formulas at wide ranges: each has an unstable twin in wrong.py."""

import numpy as np
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Softmax(Function):
    @staticmethod
    def forward(ctx, x):
        e = (x - x.amax(-1, keepdim=True)).exp()
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
        m = x.amax(-1, keepdim=True)
        s = (x - m).exp().sum(-1)
        ctx.save_for_backward(x, s, m)
        return s.log() + m[..., 0]

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, s, m = ctx.saved_tensors
        return g[..., None] * (x - m).exp() / s[..., None]


class Variance(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x - x.mean(-1, keepdim=True)).square().mean(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g[..., None] * 2 * (x - x.mean(-1, keepdim=True)) / x.shape[-1]


class LogProduct(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.log().sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g[..., None] / x


class Sigmoid(Function):
    @staticmethod
    def forward(ctx, x):
        e = (-x.abs()).exp()
        y = torch.where(x > 0, 1 / (1 + e), e / (1 + e))
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
        return g / (1 + (-x).exp())


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
        return g * x.tanh()


class UnitVector(Function):
    @staticmethod
    def forward(ctx, x):
        n = x.norm(dim=-1, keepdim=True)
        y = x / n
        ctx.save_for_backward(y, n)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        y, n = ctx.saved_tensors
        return (g - y * (y * g).sum(-1, keepdim=True)) / n


class OneMinusCos(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        h = (x / 2).sin() / (x / 2)
        return h * h / 2

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (-x / 12 + x**3 / 180)


class OneMinusCosInNumPy(OneMinusCos):
    """Its values have no digits left for a slope, and no operation is seen that could be differentiated."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        numbers = x.detach().numpy()
        return torch.from_numpy((1 - np.cos(numbers)) / numbers**2)


class Hypot(Function):
    @staticmethod
    def forward(ctx, a, b):
        r = torch.hypot(a, b)
        ctx.save_for_backward(a, b, r)
        return r

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        a, b, r = ctx.saved_tensors
        return g * (a / r), g * (b / r)


class SquareDistance(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return (a - b).square().sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        d = 2 * (a - b) * g[..., None]
        return d, -d


class ConjugateRoot(Function):
    @staticmethod
    def forward(ctx, x):
        p, q = (x + 1).sqrt(), x.sqrt()
        y = 1 / (p + q)
        ctx.save_for_backward(p, q, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        p, q, y = ctx.saved_tensors
        return -g * 0.5 * y / p / q


class LogOnePlus(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.log1p(x)

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
        s = (x - m).square().mean(-1, keepdim=True).sqrt()
        return g[..., None] * (x - m) / s / x.shape[-1]


class GeometricMean(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.log().mean(-1).exp()
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
        y = x.log_softmax(-1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g - y.exp() * g.sum(-1, keepdim=True)


class LogProductBackward(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.log().sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g[..., None] / x


class TanhByExponentials(Function):
    @staticmethod
    def forward(ctx, x):
        e = (-2 * x.abs()).exp()
        y = x.sign() * (1 - e) / (1 + e)
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
        y = c / (2 * (d + b))
        ctx.save_for_backward(d, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        d, y = ctx.saved_tensors
        return -g * y / d, g / (4 * d)


class LogSumExpBackward(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.logsumexp(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g[..., None] * x.softmax(-1)


class SeededNoise(Function):
    """Noise of a generator of its own, which draws other numbers in another dtype."""

    @staticmethod
    def forward(ctx, x, seed):
        generator = torch.Generator(device=x.device).manual_seed(seed)
        noise = torch.rand(x.shape, generator=generator, dtype=x.dtype)
        ctx.save_for_backward(noise)
        return x * noise

    @staticmethod
    def backward(ctx, g):
        (noise,) = ctx.saved_tensors
        return g * noise, None


class LogitLoss(Function):
    """By the sigmoid, which does not."""

    @staticmethod
    def forward(ctx, x, t):
        ctx.save_for_backward(x, t)
        return x.clamp_min(0) - x * t + torch.log1p(torch.exp(-x.abs()))

    @staticmethod
    def backward(ctx, g):
        x, t = ctx.saved_tensors
        return g * (torch.sigmoid(x) - t), None


class Eigenvectors(Function):
    """Of either sign: in float32 another one comes."""

    @staticmethod
    def forward(ctx, x):
        values, vectors = torch.linalg.eigh((x + x.mT) / 2)
        ctx.save_for_backward(values, vectors)
        return vectors

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        values, vectors = ctx.saved_tensors
        gaps = values[..., None, :] - values[..., :, None]
        gaps = torch.where(gaps == 0, torch.inf, gaps)
        of_x = vectors @ (vectors.mT @ g / gaps) @ vectors.mT
        return (of_x + of_x.mT) / 2
