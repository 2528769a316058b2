"""Under a spec that gives no ranges: iterations that need not converge, and declared surrogates."""

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributions import OneHotCategorical


class FixedPoint(Function):
    """z = tanh(w z + x), implicit gradient by a solve"""

    @staticmethod
    def forward(ctx, x, w):
        z = torch.zeros_like(x)
        for _ in range(100):
            z = torch.tanh(w @ z * 0.1 + x)
        ctx.save_for_backward(z, w)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        z, w = ctx.saved_tensors
        d = 1 - z * z
        J = torch.eye(len(z), dtype=z.dtype) - d[:, None] * w * 0.1
        v = torch.linalg.solve(J.T, g) * d
        return v, torch.outer(v, z) * 0.1


class Kepler(Function):
    @staticmethod
    def forward(ctx, mean, ecc):
        e = mean.clone()
        for _ in range(80):
            e = mean + ecc * e.sin()
        ctx.save_for_backward(e, ecc)
        return e

    @staticmethod
    def backward(ctx, g):
        e, ecc = ctx.saved_tensors
        g = g / (1 - ecc * e.cos())
        return g, g * e.sin()


class LargestEigenvalue(Function):
    """Of a symmetric matrix, by power iteration."""

    @staticmethod
    def forward(ctx, a):
        v = torch.ones(a.shape[-1], dtype=a.dtype)
        for _ in range(60):
            v = a @ v
            v = v / v.norm()
        ctx.save_for_backward(v)
        return v @ a @ v

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (v,) = ctx.saved_tensors
        return g * torch.outer(v, v)


def _solve(step, z, tolerance=1e-13, rounds=60):
    while rounds > 0:
        z, before = step(z), z
        rounds -= 1
        if (z - before).abs().max() < tolerance:
            break
    return z


class Equilibrium(Function):
    """z = tanh(w z + b)"""

    @staticmethod
    def forward(ctx, w, b):
        z = _solve(lambda z: torch.tanh(w @ z + b), torch.zeros_like(b))
        ctx.save_for_backward(w, z)
        return z

    @staticmethod
    def backward(ctx, g):
        w, z = ctx.saved_tensors
        d = 1 - z * z
        inner = torch.linalg.solve(torch.eye(len(z), dtype=z.dtype) - w.mT * d, g)
        g = inner * d
        return torch.outer(g, z), g


class ClampedSine(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(-20, 20).sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.clamp(-20, 20).cos()


class Draw(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.logsumexp(-1)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output.unsqueeze(-1) * OneHotCategorical(logits=x).sample()


class GradientDropout(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (1 - x.tanh() ** 2) * torch.bernoulli(torch.full_like(g, 0.5)) * 2


class OneTerm(Function):
    """The gradient of a mean by one of its terms."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square().mean(-1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        n = x.shape[-1]
        picked = torch.nn.functional.one_hot(torch.randint(n, x.shape[:-1]), n)
        return 2 * x * picked * g.unsqueeze(-1)
