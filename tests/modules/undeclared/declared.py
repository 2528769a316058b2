"""Wrong at values, or at sizes, that the spec declares."""

import torch
from torch.autograd import Function


class ClampedSine(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(-20, 20).sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.clamp(-20, 20).cos()


class Logit(Function):
    @staticmethod
    def forward(ctx, p):
        p = p.clamp(1e-7, 1 - 1e-7)
        ctx.save_for_backward(p)
        return torch.log(p / (1 - p))

    @staticmethod
    def backward(ctx, g):
        (p,) = ctx.saved_tensors
        return g / (p * (1 - p))


class CosineOfUnits(Function):
    @staticmethod
    def forward(ctx, a, b):
        a = torch.nn.functional.normalize(a, dim=-1)
        b = torch.nn.functional.normalize(b, dim=-1)
        ctx.save_for_backward(a, b)
        return (a * b).sum(-1)

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g.unsqueeze(-1) * b, g.unsqueeze(-1) * a


class Kepler(Function):
    @staticmethod
    def forward(ctx, mean, ecc):
        e = mean.clone()
        for _ in range(200):
            e = mean + ecc * e.sin()
        ctx.save_for_backward(e, ecc)
        return e

    @staticmethod
    def backward(ctx, g):
        e, ecc = ctx.saved_tensors
        g = g / (1 + ecc * e.cos())
        return g, g * e.sin()


class KeplerOpen(Kepler):
    """The same without a range."""


class Dropped(Function):
    """Not declared a surrogate."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (1 - x.tanh() ** 2) * torch.bernoulli(torch.full_like(g, 0.5)) * 2


class Replace(Function):
    @staticmethod
    def forward(ctx, value, smooth):
        return value.clone()

    @staticmethod
    def backward(ctx, g):
        return None, g


class Empty(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return (g.reshape(x.shape[0], -1) * x.exp().reshape(x.shape[0], -1)).reshape(x.shape)


class Padded(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.cumsum(-1)
        y[..., -2:] = 0
        y[..., 0] += x[..., -1]
        return y

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        g[..., -2:] = 0
        out = g.flip(-1).cumsum(-1).flip(-1)
        out[..., -2:] = 0
        return out
