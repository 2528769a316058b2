"""A Function with one wrong sign, for which a fix is known."""

SOURCE = """
import torch
from torch.autograd import Function


class Product(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return -grad_output * y, grad_output * x
"""
