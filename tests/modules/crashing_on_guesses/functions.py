"""A kernel that trusts its arguments, in a module without a spec."""

import ctypes

import torch
from torch.autograd import Function


class Trusting(Function):
    @staticmethod
    def forward(ctx, x, offsets):
        ctx.count = len(x)
        return x + len(ctypes.string_at(0))

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None


class Unrelated(Function):
    @staticmethod
    def forward(ctx, x):
        return 3 * x

    @staticmethod
    def backward(ctx, grad_output):
        return torch.mul(grad_output, 3)
