"""Textbook Functions that saturate: right at every value, with no digits left at many."""

import math

import torch
from torch.autograd import Function


class Softmax(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(-1, keepdim=True))


class SoftmaxByHand(Function):
    @staticmethod
    def forward(ctx, x):
        e = (x - x.amax(-1, keepdim=True)).exp()
        y = e / e.sum(-1, keepdim=True)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(-1, keepdim=True))


class LogSoftmax(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.log_softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g - y.exp() * g.sum(-1, keepdim=True)


class Gelu(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (
            0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        )


class GeluTanh(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        c = math.sqrt(2 / math.pi)
        t = torch.tanh(c * (x + 0.044715 * x**3))
        return g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x))


class Sigmoid(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.sigmoid(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y * (1 - y)


class Tanh(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.tanh(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * (1 - y * y)


class Softplus(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.log1p(torch.exp(-x.abs())) + x.clamp_min(0)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.sigmoid(x)


class LogOneExpMinus(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.log(1 + torch.exp(x)) - x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (torch.sigmoid(x) - 1)


class Swish(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return g * (s + x * s * (1 - s))


class Attention(Function):
    @staticmethod
    def forward(ctx, q, k, v):
        s = q @ k.mT / math.sqrt(q.shape[-1])
        p = torch.softmax(s, -1)
        ctx.save_for_backward(q, k, v)
        return p @ v

    @staticmethod
    def backward(ctx, g):
        q, k, v = ctx.saved_tensors
        c = 1 / math.sqrt(q.shape[-1])
        p = torch.softmax(q @ k.mT * c, -1)
        dv = p.mT @ g
        dp = g @ v.mT
        ds = p * (dp - (dp * p).sum(-1, keepdim=True))
        return c * ds @ k, c * ds.mT @ q, dv


class CrossEntropy(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.log_softmax(x, -1)
        ctx.save_for_backward(x)
        return -y[..., 0].mean()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        p = torch.softmax(x, -1).clone()
        p[..., 0] -= 1
        return g * p / p.shape[0]


class LayerNorm(Function):
    @staticmethod
    def forward(ctx, x):
        m = x.mean(-1, keepdim=True)
        v = ((x - m) ** 2).mean(-1, keepdim=True)
        r = torch.rsqrt(v + 1e-5)
        y = (x - m) * r
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        m = x.mean(-1, keepdim=True)
        v = ((x - m) ** 2).mean(-1, keepdim=True)
        r = torch.rsqrt(v + 1e-5)
        y = (x - m) * r
        return r * (g - g.mean(-1, keepdim=True) - y * (g * y).mean(-1, keepdim=True))


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x * x


class Exp(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y


class Erfc(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.erfc(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return -g * 2 / math.sqrt(math.pi) * torch.exp(-x * x)


class Tiny(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 1e-20 * torch.sin(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 1e-20 * torch.cos(x)


class Potential(Function):
    """A Boltzmann factor: its values are denormal numbers where x is beyond 210."""

    @staticmethod
    def forward(ctx, x):
        y = torch.exp(-x / 0.3)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return -(g * y) / 0.3


class PotentialOfRows(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.exp(-x.abs().sum(-1) / 0.0042)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return -(g * y)[..., None] * x.sign() / 0.0042


class ManyPotentials(Function):
    """Two outputs of one potential, whose gradients are added."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.exp(-x / 0.3), torch.exp(-x / 0.7) / 3

    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        return -(g * torch.exp(-x / 0.3)) / 0.3 - h / 2.1 * torch.exp(-x / 0.7)


class LogSumExp(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.logsumexp(x, -1)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g[..., None] * (x - y[..., None]).exp()


class Rsqrt(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.rsqrt(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return -0.5 * g * y**3


class Log(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.log()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / x


def cold(factor):
    """A softmax at a low temperature: whole rows have slopes that are tiny beside those of others."""

    class Cold(Softmax):
        @staticmethod
        def forward(ctx, x):
            return Softmax.forward(ctx, factor * x)

        @staticmethod
        def backward(ctx, g):
            return factor * Softmax.backward(ctx, g)

    return Cold


class Cold300(cold(300.0)):
    """Of slopes of 1e-100 and below."""


class Cold400(cold(400.0)):
    """The same, colder."""


class Cold500(cold(500.0)):
    """The same, colder still."""
