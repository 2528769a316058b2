"""Kernels that leave their tensors: one writes past the end, one reads what it must not use."""

import torch
import triton
import triton.language as tl
from torch.autograd import Function

BLOCK = 4


@triton.jit
def _scale(x_ptr, y_ptr, n, factor, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    tl.store(y_ptr + at, factor * x, mask=(at < n) | (not MASKED))


@triton.jit
def _sum(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y_ptr, tl.sum(tl.load(x_ptr + at), axis=0))


def scaled(x, factor, masked):
    y = torch.empty_like(x)
    _scale[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), factor, MASKED=masked, BLOCK=BLOCK)
    return y


class Double(Function):
    """Right, whatever the length."""

    @staticmethod
    def forward(ctx, x):
        return scaled(x, 2.0, True)

    @staticmethod
    def backward(ctx, grad_output):
        return scaled(grad_output, 2.0, True)


class WritesPastTheEnd(Double):
    """Backward's store has no mask."""

    @staticmethod
    def backward(ctx, grad_output):
        return scaled(grad_output.contiguous(), 2.0, False)


class ReadsPastTheEnd(Function):
    """The sum takes a whole block, whatever the length."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        y = x.new_empty(())
        _sum[(1,)](x, y, x.numel(), BLOCK=8)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.expand(ctx.shape)
