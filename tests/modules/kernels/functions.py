"""A Triton kernel without a word on where it runs, one beyond Triton's interpreter, and one that asks for CUDA."""

import torch
import triton
import triton.language as tl
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from triton.language.extra.cuda import libdevice as of_cuda
from triton.language.extra.libdevice import tanh


@triton.jit
def square_kernel(x_ptr, y_ptr, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    tl.store(y_ptr + offsets, x * x, mask=mask)


@triton.jit
def scaled_kernel(x_ptr, y_ptr, scale, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    tl.store(y_ptr + offsets, x * scale.to(tl.float32), mask=mask)


class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        y = torch.empty_like(x)
        square_kernel[(triton.cdiv(x.numel(), 16),)](x.contiguous(), y, x.numel(), BLOCK=16)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 2 * x * grad_output


class Scaled(Function):
    """A number is a scalar to the compiler and a float to the interpreter."""

    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        scaled_kernel[(triton.cdiv(x.numel(), 64),)](x.contiguous(), y, 2.5, x.numel(), BLOCK=64)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        return 2.5 * grad_output


@triton.autotune(configs=[triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["count"])
@triton.jit
def library_kernel(x_ptr, y_ptr, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    tl.store(y_ptr + offsets, tanh(x) * of_cuda.rsqrt(1 + x * x), mask=mask)


class Library(Function):
    """Functions of CUDA's libdevice, in a kernel that is tuned."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        y = torch.empty_like(x)
        grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)  # noqa: E731 - as kernels are launched
        library_kernel[grid](x.contiguous(), y, x.numel())
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        root = torch.rsqrt(1 + x * x)
        return grad_output * root * (1 - torch.tanh(x) ** 2 - torch.tanh(x) * x * root**2)


@triton.jit
def assembled_kernel(x_ptr, y_ptr, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    twice = tl.inline_asm_elementwise("add.f64 $0, $1, $1;", "=d,d", [x], dtype=tl.float64, is_pure=True, pack=1)
    tl.store(y_ptr + offsets, twice, mask=mask)


class Written(Function):
    """In assembler, which the interpreter does not know."""

    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        assembled_kernel[(triton.cdiv(x.numel(), 64),)](x.contiguous(), y, x.numel(), BLOCK=64)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        return 2 * grad_output


class OnCuda(Function):
    @staticmethod
    def forward(ctx, x):
        return (x.cuda() * 3).to(x.device)

    @staticmethod
    def backward(ctx, grad_output):
        return 3 * grad_output
