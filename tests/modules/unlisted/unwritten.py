"""Gradients in memory that indices cover only where they are a permutation."""

import torch
from torch.autograd import Function


class AlongLast(Function):
    """Right for a permutation of the entries."""

    @staticmethod
    def forward(ctx, x, permutation):
        ctx.save_for_backward(permutation)
        return x[..., permutation]

    @staticmethod
    def backward(ctx, grad):
        (permutation,) = ctx.saved_tensors
        given = torch.empty_like(grad)
        given[..., permutation] = grad
        return given, None


class Rows(Function):
    """Right for a permutation of the rows."""

    @staticmethod
    def forward(ctx, x, rows):
        ctx.save_for_backward(rows)
        return 3.0 * x[rows]

    @staticmethod
    def backward(ctx, grad):
        (rows,) = ctx.saved_tensors
        given = grad.new_empty(grad.shape)
        given.index_copy_(0, rows, 3.0 * grad)
        return given, None


class Swapped(Function):
    """Right where `src` names each column once in each row."""

    @staticmethod
    def forward(ctx, x, src):
        ctx.save_for_backward(src, x)
        return x.square().gather(1, src)

    @staticmethod
    def backward(ctx, grad):
        src, x = ctx.saved_tensors
        return 2.0 * x * torch.empty_like(x).scatter_(1, src, grad), None


class FirstRowForgotten(Function):
    """Wrong whatever the index is."""

    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        return x[index] + x.sum()

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        given = torch.zeros_like(grad).index_add_(0, index, grad) + grad.sum()
        written = torch.empty_like(grad)
        written[1:] = given[1:]
        return written, None


class AddedByHand(Function):
    """Wrong for parameters: it adds to `.grad` itself, and returns the gradient as well."""

    @staticmethod
    def forward(ctx, x, index):
        ctx.save_for_backward(index)
        ctx.x = x
        return 2.0 * x[index]

    @staticmethod
    def backward(ctx, grad):
        (index,) = ctx.saved_tensors
        given = torch.zeros_like(ctx.x).index_add_(0, index, 2.0 * grad)
        if ctx.x.is_leaf and ctx.x.grad is not None:
            ctx.x.grad += given
        return given, None
