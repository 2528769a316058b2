"""Functions with a real option that is left to its default, and right at that alone, or at any value."""

import torch
from torch.autograd import Function


class Dropped(Function):
    """Wrong but at p=0.5: backward divides by what is dropped."""

    @staticmethod
    def forward(ctx, x, p=0.5):
        if p == 0:
            ctx.p = None
            return x.clone()
        mask = (torch.rand_like(x) >= p).to(x.dtype)
        ctx.save_for_backward(mask)
        ctx.p = p
        return x * mask / (1 - p)

    @staticmethod
    def backward(ctx, grad):
        if ctx.p is None:
            return grad, None
        (mask,) = ctx.saved_tensors
        return grad * mask / ctx.p, None


class Huber(Function):
    """Wrong but at delta=1.0: backward does not scale what is cut off."""

    @staticmethod
    def forward(ctx, x, delta=1.0):
        ctx.save_for_backward(x)
        ctx.delta = delta
        linear = delta * (x.abs() - 0.5 * delta)
        return torch.where(x.abs() <= delta, 0.5 * x.square(), linear)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.where(x.abs() <= ctx.delta, x, x.sign()), None


class Stabilised(Function):
    """Wrong but at eps=1e-5, which backward has written out."""

    @staticmethod
    def forward(ctx, x, eps=1e-5):
        ctx.save_for_backward(x)
        return (x.square() + eps).sqrt()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * x / (x.square() + 1e-5).sqrt(), None


class Smoothed(Function):
    """Wrong but at alpha=0.0 and scale=1.0, together."""

    @staticmethod
    def forward(ctx, x, alpha=0.0, scale=1.0):
        ctx.save_for_backward(x)
        ctx.alpha, ctx.scale = alpha, scale
        return scale * x.sin() + alpha * scale * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (ctx.scale * x.cos() + ctx.alpha), None, None


class Leaky(Function):
    """Right at any slope, and any bound beyond it."""

    @staticmethod
    def forward(ctx, x, slope=0.01, bound=20.0):
        ctx.save_for_backward(x)
        ctx.slope, ctx.bound = slope, bound
        return torch.where(x > 0, x, slope * x).clamp(max=bound)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        slope = torch.where(x > 0, torch.ones_like(x), torch.full_like(x, ctx.slope))
        return grad * slope * (x <= ctx.bound), None, None


class Powered(Function):
    """Right where forward takes it: at integral powers of negative numbers."""

    @staticmethod
    def forward(ctx, x, power=3.0):
        ctx.save_for_backward(x)
        ctx.power = power
        return x.pow(power)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.power * x.pow(ctx.power - 1), None


class Limited(Function):
    """Right: forward refuses a rate other than a half."""

    @staticmethod
    def forward(ctx, x, rate=0.5):
        if not rate == 0.5:
            raise ValueError("rate must be 0.5")
        return rate * x

    @staticmethod
    def backward(ctx, grad):
        return 0.5 * grad, None
