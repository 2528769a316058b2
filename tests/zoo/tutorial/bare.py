"""Functions to be verified with no spec at all: every parameter is a float tensor, all of one shape.

They hold nothing but torch and NumPy, so that they also serve as the first file a newcomer tries.
"""

import numpy as np
import torch
from torch.autograd import Function


class Product(Function):
    """Right."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        return grad_output * b, grad_output * a


class OldStyleProduct(Function):
    """Right, and written before `@staticmethod` was asked for."""

    def forward(self, a, b):
        self.save_for_backward(a, b)
        return a * b

    def backward(self, grad_output):
        a, b = self.saved_tensors
        return grad_output * b, grad_output * a


class ProductSwapped(Function):
    """Wrong: each factor gets its own value as gradient instead of the other's."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        return grad_output * a, grad_output * b


class ReLU(Function):
    """Right, kink and all."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (x > 0)


class ReLUForgetsToSave(Function):
    """Wrong: forward forgets `ctx.save_for_backward(x)`."""

    @staticmethod
    def forward(ctx, x):
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * (x > 0)


class Cube(Function):
    """Right; autograd never calls `double_backward`."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 3 * x**2

    @staticmethod
    def double_backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 6 * x + 1


class DoubleOrHalve(Function):
    """Right in both branches."""

    @staticmethod
    def forward(ctx, x):
        ctx.factor = 2.0 if x.sum() > 0 else 0.5
        return x * ctx.factor

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * ctx.factor


class NumPyExp(Function):
    """Right to first order; the second is silently cut, which nobody has asked about."""

    @staticmethod
    def forward(ctx, x):
        y = torch.from_numpy(np.exp(x.detach().numpy()))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return torch.from_numpy(grad_output.detach().numpy() * y.detach().numpy())
