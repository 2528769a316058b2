"""One more dimension behind those that were guessed: channels come second, and what follows them is free."""

import torch
from torch.autograd import Function


class SlopeOfChannels(Function):
    """A slope for each channel below zero."""

    @staticmethod
    def forward(ctx, x, slope):
        ctx.save_for_backward(x, slope)
        a = slope.reshape([1, -1] + [1] * (x.dim() - 2))
        return torch.where(x >= 0, x, a * x)

    @staticmethod
    def backward(ctx, g):
        x, slope = ctx.saved_tensors
        a = slope.reshape([1, -1] + [1] * (x.dim() - 2))
        of_slope = torch.where(x < 0, g * x, 0.0)
        return torch.where(x < 0, a * g, g), of_slope.sum([d for d in range(x.dim()) if d != 1])


class SlopeOfChannelsMean(SlopeOfChannels):
    """The mean over what follows the channels."""

    @staticmethod
    def backward(ctx, g):
        x, slope = ctx.saved_tensors
        of_x, _ = SlopeOfChannels.backward(ctx, g)
        of_slope = torch.where(x < 0, g * x, 0.0)
        of_slope = of_slope.flatten(2).mean(2) if x.dim() > 2 else of_slope
        return of_x, of_slope.sum(0)


class ShiftOfChannels(Function):
    """A shift for each channel; its gradient forgets what follows them."""

    @staticmethod
    def forward(ctx, x, shift):
        return x + shift.view(-1, *[1] * (x.ndim - 2))

    @staticmethod
    def backward(ctx, g):
        of_shift = g.sum(0)
        return g, of_shift if of_shift.dim() == 1 else of_shift[..., 0].reshape(len(of_shift), -1)[:, 0]


class SumOfRest(Function):
    """The sum of all that follows the first dimension, whose gradient is too small by the last size but two."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.flatten(1).sum(1)

    @staticmethod
    def backward(ctx, g):
        whole = g.reshape(-1, *[1] * (len(ctx.shape) - 1)).expand(ctx.shape)
        return whole / ctx.shape[2] if len(ctx.shape) > 2 else whole


class AffineRows(Function):
    """A bias gets a mean over further dimensions, which one of size 1 does not show."""

    @staticmethod
    def forward(ctx, x, w, b):
        ctx.save_for_backward(x, w, b)
        return x @ w.mT + b

    @staticmethod
    def backward(ctx, g):
        x, w, _ = ctx.saved_tensors
        of_w = g.flatten(0, -2).mT @ x.flatten(0, -2)
        return g @ w, of_w, g.flatten(1, -2).mean(1).sum(0) if g.dim() > 2 else g.sum(0)


class AffineOfRows(AffineRows):
    """Right for any rank."""

    @staticmethod
    def backward(ctx, g):
        x, w, _ = ctx.saved_tensors
        of_w = g.flatten(0, -2).mT @ x.flatten(0, -2)
        return g @ w, of_w, g.flatten(0, -2).sum(0)
