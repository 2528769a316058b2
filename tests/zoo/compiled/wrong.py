"""The same with wrong gradients."""

import torch
from torch.autograd import Function


@torch.compile(fullgraph=True, dynamic=False, backend="aot_eager")
def slope(x):
    return torch.sigmoid(x) * 3


class CompiledBackward(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.nn.functional.softplus(x) * 3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 1.01 * slope(x) * g


class Choice(Function):
    """torch.cond: its two branches are higher-order arguments."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.cond(x.sum() > 1e6, lambda x: x.cos(), lambda x: x.sin(), (x,))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return -g * x.cos()
