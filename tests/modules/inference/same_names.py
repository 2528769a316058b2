"""Two Functions of one name within modules of their own: what one is passed says nothing of the other."""

import torch
from torch import nn
from torch.autograd import Function


class Running(nn.Module):
    """Divides by a buffer, which is a constant."""

    class Fn(Function):
        @staticmethod
        def forward(ctx, x, scale):
            ctx.save_for_backward(scale.clone())
            return x / scale

        @staticmethod
        def backward(ctx, g):
            (scale,) = ctx.saved_tensors
            return g / scale, None

    def __init__(self):
        super().__init__()
        self.register_buffer("peak", torch.ones(()))

    def forward(self, x):
        return Running.Fn.apply(x, self.peak)


class Trained(nn.Module):
    """Divides by a parameter, whose gradient is forgotten."""

    class Fn(Function):
        @staticmethod
        def forward(ctx, x, scale):
            ctx.save_for_backward(scale.clone())
            return x / scale

        @staticmethod
        def backward(ctx, g):
            (scale,) = ctx.saved_tensors
            return g / scale, None

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.Fn.apply(x, self.scale)
