"""Without a spec: a forward that broadcasts more than backward is made for, and what a default hides."""

import torch


class InstanceNormScale(torch.autograd.Function):
    """`gamma` is one number for each channel; nothing in forward says so."""

    @staticmethod
    def forward(ctx, x, gamma):
        mean = x.mean(2, keepdim=True)
        deviation = (x.var(2, keepdim=True, unbiased=False) + 1e-5).sqrt()
        z = (x - mean) / deviation
        ctx.save_for_backward(z, deviation, gamma)
        return z * gamma[None, :, None]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        z, deviation, gamma = ctx.saved_tensors
        dz = grad_output * gamma[None, :, None]
        dx = dz - dz.mean(2, keepdim=True) - z * (dz * z).mean(2, keepdim=True)
        return dx / deviation, (grad_output * z).sum((0, 2))


class OneWay(torch.autograd.Function):
    """A cumulative sum; the reversed one is right as well."""

    @staticmethod
    def forward(ctx, x, dim=0, reverse=False):
        ctx.dim, ctx.reverse = dim, reverse
        return x.flip(dim).cumsum(dim).flip(dim) if reverse else x.cumsum(dim)

    @staticmethod
    def backward(ctx, grad):
        if ctx.reverse:
            return grad.cumsum(ctx.dim), None, None
        return grad.flip(ctx.dim).cumsum(ctx.dim).flip(ctx.dim), None, None


class OneWayAlone(torch.autograd.Function):
    """Its backward does not know that it may be reversed."""

    @staticmethod
    def forward(ctx, x, dim=0, reverse=False):
        ctx.dim = dim
        return x.flip(dim).cumsum(dim).flip(dim) if reverse else x.cumsum(dim)

    @staticmethod
    def backward(ctx, grad):
        return grad.flip(ctx.dim).cumsum(ctx.dim).flip(ctx.dim), None, None


class Windows(torch.autograd.Function):
    """Right as long as windows do not overlap, as by default."""

    @staticmethod
    def forward(ctx, x, width=3, stride=None):
        ctx.width, ctx.stride, ctx.shape = width, stride or width, x.shape
        return torch.nn.functional.avg_pool1d(x, width, stride)

    @staticmethod
    def backward(ctx, grad):
        gradient = grad.new_zeros(ctx.shape)
        for k in range(grad.shape[-1]):
            start = k * ctx.stride
            gradient[..., start : start + ctx.width] = grad[..., k : k + 1] / ctx.width
        return gradient, None, None
