"""A kernel that trusts its inputs, an index among them: it leaves its memory where values are large."""

import ctypes

from torch.autograd import Function


class Picked(Function):
    @staticmethod
    def forward(ctx, x, index):
        ctx.count = len(x)
        ctx.save_for_backward(index)
        if x.numel() and float(x.abs().max()) > 30:
            ctypes.string_at(0)
        return x[index]

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        return g.new_zeros(ctx.count, *g.shape[1:]).index_add(0, index, g), None
