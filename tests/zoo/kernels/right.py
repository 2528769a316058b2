"""What kernels do with memory and blocks, in plain torch, and right."""

import ctypes

import torch
from torch.autograd import Function

BLOCK = 64
"""Written where the sizes of a spec do not reach it."""


class WrittenAfterwards(Function):
    """Allocated empty, and written to the last entry before anyone reads it."""

    @staticmethod
    def forward(ctx, x):
        y = torch.empty(x.shape, dtype=x.dtype)
        torch.mul(x, 2, out=y)
        return y

    @staticmethod
    def backward(ctx, g):
        grad = torch.empty_like(g)
        grad[:1] = 2 * g[:1]
        grad[1:] = 2 * g[1:]
        return grad


class WrittenByIndex(Function):
    @staticmethod
    def forward(ctx, x, order):
        ctx.save_for_backward(order)
        return x[order]

    @staticmethod
    def backward(ctx, g):
        (order,) = ctx.saved_tensors
        grad = g.new_empty(g.shape)
        grad.index_put_((order,), g)
        return grad, None


class UnreadPadding(Function):
    """The buffer is larger than what is used of it, and a beta of zero reads nothing."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        n = x.shape[0]
        padded = torch.empty(n + 5, dtype=x.dtype)
        padded[:n] = 3 * x
        return torch.addmm(torch.empty(n, n, dtype=x.dtype), padded[:n, None], x[None, :], beta=0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * (g @ x + g.T @ x)


class ByBlocks(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        grad = torch.empty_like(x)
        for start in range(0, x.shape[-1], BLOCK):
            part = slice(start, start + BLOCK)
            grad[..., part] = 2 * x[..., part] * g[..., part]
        return grad


class UpToABlock(Function):
    """Refuses what it is not made for: nothing wrong, and nothing known past it."""

    @staticmethod
    def forward(ctx, x):
        if x.shape[-1] > BLOCK:
            raise ValueError(f"at most {BLOCK} columns")
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g


class Halves(Function):
    """Right for an even number of columns, which is what its spec lists."""

    @staticmethod
    def forward(ctx, x):
        half = x.shape[-1] // 2
        ctx.save_for_backward(x)
        return x[..., :half] * x[..., -half:]

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        half = x.shape[-1] // 2
        grad = torch.cat([g * x[..., half : 2 * half], g * x[..., :half]], -1)
        return torch.nn.functional.pad(grad, (0, x.shape[-1] - 2 * half))


class ByAddress(Function):
    """A kernel behind a C interface gets addresses: one of no memory would end the process."""

    @staticmethod
    def forward(ctx, x):
        return copied_by_address(x.contiguous())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return copied_by_address(g.contiguous())


def copied_by_address(x):
    y = torch.empty_like(x)
    ctypes.memmove(y.data_ptr(), x.data_ptr(), x.numel() * x.element_size())
    return y
