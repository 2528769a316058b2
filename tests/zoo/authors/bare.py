"""Right Functions without a spec whose forward broadcasts more shapes than backward is made for."""

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
