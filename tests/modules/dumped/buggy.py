"""Wrong in one line each, which the test mends: a factor, a detached second order, a typo, a structure."""

import torch
from torch.autograd import Function


class Product(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return grad * b, 2 * grad * a  # mend: return grad * b, grad * a


class Cut(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 3 * x.detach() ** 2  # mend: return grad * 3 * x**2


class Typo(Function):
    @staticmethod
    def forward(ctx, x, flag):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * y.exp(), None  # mend: return grad * x.exp(), None


class LogDet(Function):
    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return torch.logdet(a)

    @staticmethod
    def backward(ctx, grad):
        (a,) = ctx.saved_tensors
        return -grad * torch.linalg.inv(a)  # mend: return grad * torch.linalg.inv(a)


class Rotated(Function):
    @staticmethod
    def forward(ctx, z, ws):
        ctx.save_for_backward(z, *ws) if isinstance(ws, tuple) else ctx.save_for_backward(z)
        return z * 1j

    @staticmethod
    def backward(ctx, grad):
        return grad * 1j, None  # mend: return grad * -1j, None
