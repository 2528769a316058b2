"""Gradients that are one sum: of one number, or of one entry."""

import torch
from torch.autograd import Function


class Swish(Function):
    """Of one slope for all entries, whatever its shape."""

    @staticmethod
    def forward(ctx, x, beta):
        ctx.save_for_backward(x, beta)
        return x * torch.sigmoid(beta * x)

    @staticmethod
    def backward(ctx, g):
        x, beta = ctx.saved_tensors
        s = torch.sigmoid(beta * x)
        of_beta = torch.sum(g * x * x * s * (1 - s)).expand_as(beta)
        return g * (s + beta * x * s * (1 - s)), of_beta / 1


class SwishUnsquared(Swish):
    @staticmethod
    def backward(ctx, g):
        x, beta = ctx.saved_tensors
        s = torch.sigmoid(beta * x)
        of_beta = torch.sum(g * x * s * (1 - s)).expand_as(beta)
        return g * (s + beta * x * s * (1 - s)), of_beta


class Leaky(Function):
    """Of a slope that has one entry."""

    @staticmethod
    def forward(ctx, x, slope):
        ctx.save_for_backward(x, slope)
        return torch.where(x > 0, x, slope * x)

    @staticmethod
    def backward(ctx, g):
        x, slope = ctx.saved_tensors
        of_slope = (g * x * (x <= 0)).sum().view(1)
        return torch.where(x > 0, g, slope * g), of_slope


class Tempered(Function):
    """Of a temperature, named before it is returned."""

    @staticmethod
    def forward(ctx, logits, temperature):
        ctx.save_for_backward(logits, temperature)
        return (logits / temperature).exp()

    @staticmethod
    def backward(ctx, g):
        logits, temperature = ctx.saved_tensors
        inner = g * (logits / temperature).exp() / temperature
        total = -(inner * logits / temperature).sum()
        return inner, total.reshape(temperature.shape)


class PerEntry(Function):
    """A sum over some dimensions is none over all."""

    @staticmethod
    def forward(ctx, x, gain):
        ctx.save_for_backward(x, gain)
        return x * gain

    @staticmethod
    def backward(ctx, g):
        x, gain = ctx.saved_tensors
        return g * gain, (g * x).sum(0)
