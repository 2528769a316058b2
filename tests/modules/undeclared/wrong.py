"""Wrong whatever the inputs."""

import torch
import torch.nn.functional as F
from torch.autograd import Function


class LogitSign(Function):
    @staticmethod
    def forward(ctx, p):
        p = p.clamp(1e-7, 1 - 1e-7)
        ctx.save_for_backward(p)
        return torch.log(p / (1 - p))

    @staticmethod
    def backward(ctx, g):
        (p,) = ctx.saved_tensors
        return g / (p * (1 + p))


class MaximumOfRow(Function):
    """All entries get the gradient of the largest."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.max(-1).values

    @staticmethod
    def backward(ctx, g):
        return g.unsqueeze(-1).expand(ctx.shape)


class DroppedOut(Function):
    """The mask is forgotten."""

    @staticmethod
    def forward(ctx, x):
        mask = (torch.rand_like(x) < 0.5).to(x)
        ctx.save_for_backward(x)
        return x * x * mask

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 * x


class RedrawnMask(Function):
    @staticmethod
    def forward(ctx, x):
        return x * (torch.rand_like(x) < 0.5).to(x)

    @staticmethod
    def backward(ctx, g):
        return g * (torch.rand_like(g) < 0.5).to(g)


class Normalised(Function):
    """The projection is forgotten."""

    @staticmethod
    def forward(ctx, x):
        n = x.norm(dim=-1, keepdim=True)
        ctx.save_for_backward(n)
        return x / n

    @staticmethod
    def backward(ctx, g):
        (n,) = ctx.saved_tensors
        return g / n


class Half(Function):
    """Half of the gradient is forgotten."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        out = g * x.cos()
        out[..., -1:] = 0
        return out


class PaddedScaled(Function):
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
        cut = [torch.fft.irfft(g * torch.fft.rfft(o, n=n), n=n)[..., : n // 2].flip(-1) for o in (v, u)]
        return tuple(1.1 * F.pad(one, (0, n // 2)) for one in cut)


class CosineHalf(Function):
    @staticmethod
    def forward(ctx, a, b):
        a = torch.nn.functional.normalize(a, dim=-1)
        b = torch.nn.functional.normalize(b, dim=-1)
        ctx.save_for_backward(a, b)
        return (a * b).sum(-1)

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g.unsqueeze(-1) * a, g.unsqueeze(-1) * b


class HeronRoot(Function):
    """The square root by Heron's rule, whose gradient is twice too large."""

    @staticmethod
    def forward(ctx, x):
        z = 1 + x.abs()
        for _ in range(50):
            z = (z + x.abs() / z) / 2
        ctx.save_for_backward(x, z)
        return z

    @staticmethod
    def backward(ctx, g):
        x, z = ctx.saved_tensors
        return g * x.sign() / z
