"""Right on the domain that forward clamps, pads or normalises to, or where it converges; wrong elsewhere."""

import torch
import torch.nn.functional as F
from torch.autograd import Function


class Logit(Function):
    """On (0, 1)."""

    @staticmethod
    def forward(ctx, p):
        p = p.clamp(1e-7, 1 - 1e-7)
        ctx.save_for_backward(p)
        return torch.log(p / (1 - p))

    @staticmethod
    def backward(ctx, g):
        (p,) = ctx.saved_tensors
        return g / (p * (1 - p))


class ArcCosine(Function):
    """On [-1, 1]."""

    @staticmethod
    def forward(ctx, x):
        x = torch.clamp(x, -1 + 1e-9, 1 - 1e-9)
        ctx.save_for_backward(x)
        return x.acos()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return -g * (1 - x * x).rsqrt()


class LorentzDistance(Function):
    """Of points on the hyperboloid, where the product is at most -1."""

    @staticmethod
    def forward(ctx, u, v):
        product = u[..., 0] * v[..., 0] - (u[..., 1:] * v[..., 1:]).sum(-1)
        z = product.clamp(min=1 + 1e-9)
        ctx.save_for_backward(u, v, z)
        return z.acosh()

    @staticmethod
    def backward(ctx, g):
        u, v, z = ctx.saved_tensors
        s = (g / (z * z - 1).sqrt()).unsqueeze(-1)
        sign = -torch.ones(u.shape[-1], dtype=u.dtype)
        sign[0] = 1
        return s * sign * v, s * sign * u


class LogPositive(Function):
    """Of what is positive."""

    @staticmethod
    def forward(ctx, x):
        y = torch.maximum(x, torch.full_like(x, 1e-12))
        ctx.save_for_backward(y)
        return y.log().sum(-1)

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g.unsqueeze(-1) / y


class OutsideOfBoth(Function):
    """Where |x| > 1, on both sides."""

    @staticmethod
    def forward(ctx, x):
        inner = (x * x - 1).clamp_min(1e-12)
        ctx.save_for_backward(x, inner)
        return inner.sqrt().sum(-1)

    @staticmethod
    def backward(ctx, g):
        x, inner = ctx.saved_tensors
        return g[..., None] * x / inner.sqrt()


class ClampedSine(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(-20, 20).sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.clamp(-20, 20).cos()


class PaddedConvolution(Function):
    @staticmethod
    def forward(ctx, u, v):
        n = u.shape[-1]
        ctx.save_for_backward(u, v)
        y = torch.fft.irfft(torch.fft.rfft(u, n=n) * torch.fft.rfft(v, n=n), n=n)
        return F.pad(y[..., : n // 2], (0, n // 2))

    @staticmethod
    def backward(ctx, grad_output):
        u, v = ctx.saved_tensors
        n = u.shape[-1]
        g = torch.fft.rfft(F.pad(grad_output[..., : n // 2].flip(-1), (0, n // 2)), n=n)
        return tuple(
            F.pad(torch.fft.irfft(g * torch.fft.rfft(other, n=n), n=n)[..., : n // 2].flip(-1), (0, n // 2))
            for other in (v, u)
        )


class LeftPadded(Function):
    """The first two entries are padding."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        y = x * x.sum(-1, keepdim=True)
        y = y.clone()
        y[..., :2] = 0
        return y

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        g = g.clone()
        g[..., :2] = 0
        out = g * x.sum(-1, keepdim=True) + (g * x).sum(-1, keepdim=True)
        out[..., :2] = 0
        return out


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


class Entropy(Function):
    """Of probabilities, which are normalised again."""

    @staticmethod
    def forward(ctx, p):
        p = p.abs() / p.abs().sum(-1, keepdim=True)
        ctx.save_for_backward(p)
        return -(p * p.log()).sum(-1)

    @staticmethod
    def backward(ctx, g):
        (p,) = ctx.saved_tensors
        return -g.unsqueeze(-1) * (p.log() + 1)


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
