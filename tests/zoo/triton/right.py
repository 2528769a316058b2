"""Right Triton kernels, forward and backward, run by Triton's interpreter where there is no GPU."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")

import torch
import triton
import triton.language as tl

BLOCK = 32
LANES = 4


@triton.jit
def gelu_kernel(x_ptr, y_ptr, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    tl.store(y_ptr + offsets, x * tl.sigmoid(1.702 * x), mask=mask)


@triton.jit
def gelu_backward_kernel(x_ptr, g_ptr, out_ptr, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    g = tl.load(g_ptr + offsets, mask=mask, other=0.0)
    s = tl.sigmoid(1.702 * x)
    tl.store(out_ptr + offsets, g * (s + 1.702 * x * s * (1 - s)), mask=mask)


class QuickGELU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        ctx.save_for_backward(x)
        y = torch.empty_like(x)
        gelu_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), BLOCK=BLOCK)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        grad = torch.empty_like(x)
        grid = (triton.cdiv(x.numel(), BLOCK),)
        gelu_backward_kernel[grid](x, grad_output.contiguous(), grad, x.numel(), BLOCK=BLOCK)
        return grad


class Unmarked(QuickGELU):
    """Without `once_differentiable`, as most kernels are: its second derivative is None."""

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        grad = torch.empty_like(x)
        grid = (triton.cdiv(x.numel(), BLOCK),)
        gelu_backward_kernel[grid](x, grad_output.contiguous(), grad, x.numel(), BLOCK=BLOCK)
        return grad


@triton.jit
def softmax_kernel(x_ptr, y_ptr, columns, WIDTH: tl.constexpr):
    row = tl.program_id(0) * columns
    offsets = tl.arange(0, WIDTH)
    mask = offsets < columns
    x = tl.load(x_ptr + row + offsets, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row + offsets, e / tl.sum(e, axis=0), mask=mask)


@triton.jit
def softmax_backward_kernel(y_ptr, g_ptr, out_ptr, columns, WIDTH: tl.constexpr):
    row = tl.program_id(0) * columns
    offsets = tl.arange(0, WIDTH)
    mask = offsets < columns
    y = tl.load(y_ptr + row + offsets, mask=mask, other=0.0)
    g = tl.load(g_ptr + row + offsets, mask=mask, other=0.0)
    tl.store(out_ptr + row + offsets, y * (g - tl.sum(y * g, axis=0)), mask=mask)


class RowSoftmax(torch.autograd.Function):
    """One program a row, its width rounded up to a power of two."""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](x, y, x.shape[1], WIDTH=triton.next_power_of_2(x.shape[1]))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        grad = torch.empty_like(y)
        width = triton.next_power_of_2(y.shape[1])
        softmax_backward_kernel[(y.shape[0],)](y, grad_output.contiguous(), grad, y.shape[1], WIDTH=width)
        return grad


@triton.jit
def rms_norm_kernel(x_ptr, w_ptr, y_ptr, r_ptr, columns, eps, LANES: tl.constexpr):
    row = tl.program_id(0)
    total = tl.sum(tl.zeros((LANES,), dtype=x_ptr.dtype.element_ty), axis=0)
    for start in range(0, columns, LANES):
        offsets = start + tl.arange(0, LANES)
        x = tl.load(x_ptr + row * columns + offsets, mask=offsets < columns, other=0.0)
        total += tl.sum(x * x, axis=0)
    r = 1 / tl.sqrt(total / columns + eps)
    tl.store(r_ptr + row, r)
    for start in range(0, columns, LANES):
        offsets = start + tl.arange(0, LANES)
        mask = offsets < columns
        x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=0.0)
        w = tl.load(w_ptr + offsets, mask=mask, other=0.0)
        tl.store(y_ptr + row * columns + offsets, x * r * w, mask=mask)


@triton.jit
def rms_norm_backward_kernel(x_ptr, w_ptr, r_ptr, g_ptr, dx_ptr, dw_ptr, columns, LANES: tl.constexpr):
    row = tl.program_id(0)
    r = tl.load(r_ptr + row)
    dot = tl.sum(tl.zeros((LANES,), dtype=x_ptr.dtype.element_ty), axis=0)
    for start in range(0, columns, LANES):
        offsets = start + tl.arange(0, LANES)
        mask = offsets < columns
        x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=0.0)
        w = tl.load(w_ptr + offsets, mask=mask, other=0.0)
        g = tl.load(g_ptr + row * columns + offsets, mask=mask, other=0.0)
        dot += tl.sum(g * w * x, axis=0)
    for start in range(0, columns, LANES):
        offsets = start + tl.arange(0, LANES)
        mask = offsets < columns
        x = tl.load(x_ptr + row * columns + offsets, mask=mask, other=0.0)
        w = tl.load(w_ptr + offsets, mask=mask, other=0.0)
        g = tl.load(g_ptr + row * columns + offsets, mask=mask, other=0.0)
        tl.store(dx_ptr + row * columns + offsets, r * (g * w - x * r * r * dot / columns), mask=mask)
        tl.store(dw_ptr + row * columns + offsets, g * x * r, mask=mask)


class RMSNorm(torch.autograd.Function):
    """A reduction over columns in chunks; the weight's gradient is summed over the rows."""

    @staticmethod
    def forward(ctx, x, weight, eps=1e-6):
        x, weight = x.contiguous(), weight.contiguous()
        y, r = torch.empty_like(x), torch.empty_like(x[:, 0])
        rms_norm_kernel[(x.shape[0],)](x, weight, y, r, x.shape[1], eps, LANES=LANES)
        ctx.save_for_backward(x, weight, r)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_output):
        x, weight, r = ctx.saved_tensors
        dx, parts = torch.empty_like(x), torch.empty_like(x)
        rms_norm_backward_kernel[(x.shape[0],)](
            x, weight, r, grad_output.contiguous(), dx, parts, x.shape[1], LANES=LANES
        )
        return dx, parts.sum(dim=0), None
