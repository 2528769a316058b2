"""A backward that is wrong in one place, and one that raises."""
from torch.autograd import Function


class Product(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        return b * grad, 2 * a * grad


class Raises(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        print("x is", len(ctx.saved_tensors), "tensor")
        x = ctx.saved_tensors
        return 2 * x.T * grad


class Noisy(Function):
    """No two calls agree, as with atomic additions in a kernel."""

    calls = 0

    @staticmethod
    def forward(ctx, x):
        Noisy.calls += 1
        return 2 * x + 1e-4 * (Noisy.calls * 0.618 % 1)

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad
