"""Iterations that stop before they have converged, with the gradient of the limit."""

import torch


class FixedPoint(torch.autograd.Function):
    """y = cos(a y), to four digits."""

    @staticmethod
    def forward(ctx, a):
        y = torch.full_like(a, 0.7)
        for _ in range(12):
            y = torch.cos(a * y)
        ctx.save_for_backward(a, y)
        return y

    @staticmethod
    def backward(ctx, g):
        a, y = ctx.saved_tensors
        s = torch.sin(a * y)
        return -g * s * y / (1 + a * s)


class FixedPointTurned(FixedPoint):
    """The other sign below the line."""

    @staticmethod
    def backward(ctx, g):
        a, y = ctx.saved_tensors
        s = torch.sin(a * y)
        return -g * s * y / (1 - a * s)


class RootByNewton(torch.autograd.Function):
    """The cube root, to a tolerance."""

    @staticmethod
    def forward(ctx, x):
        y = torch.ones_like(x)
        while bool(((y**3 - x).abs() > 1e-4).any()):
            y = y - (y**3 - x) / (3 * y * y)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g / (3 * y * y)
