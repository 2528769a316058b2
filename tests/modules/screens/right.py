"""Functions that are right."""
import torch
from torch.autograd import Function


class Scale(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return factor * x

    @staticmethod
    def backward(ctx, grad):
        return ctx.factor * grad, None


class Product(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return b * grad, a * grad


class Argmax(Function):
    @staticmethod
    def forward(ctx, x):
        best = torch.argmax(x, -1)
        ctx.mark_non_differentiable(best)
        return best

    @staticmethod
    def backward(ctx, grad):
        return None


class Legacy(Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return 0 * grad
