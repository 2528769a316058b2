"""`assert_kernel`: what an author of kernels writes in a test."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.autograd import Function

import gradverify
from gradverify import GradientError, assert_kernel
from gradverify.errors import UsageError

BLOCK = 4


def in_float32(function, *tensors):
    made = function(*(t.detach().float().numpy() for t in tensors))
    return torch.from_numpy(np.ascontiguousarray(made, dtype=np.float32)).to(tensors[0].dtype)


class SiLU(Function):
    """A kernel in float32 inside, whatever it is given."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return in_float32(lambda v: v / (1 + np.exp(-v)), x)

    @staticmethod
    def derivative(x):
        s = 1 / (1 + np.exp(-x))
        return s * (1 + x * (1 - s))

    @classmethod
    def gradient(cls, x, grad_output):
        return in_float32(lambda v, g: g * cls.derivative(v), x, grad_output)

    @staticmethod
    def backward(ctx, grad_output):
        return SiLU.gradient(*ctx.saved_tensors, grad_output)


class Factor(SiLU):
    @staticmethod
    def backward(ctx, grad_output):
        return 1.02 * SiLU.gradient(*ctx.saved_tensors, grad_output)


class ShortInside(SiLU):
    @staticmethod
    def backward(ctx, grad_output):
        return SiLU.gradient(*ctx.saved_tensors, grad_output).half().to(grad_output.dtype)


class Tail(SiLU):
    """A last block that is not full is not written."""

    @staticmethod
    def backward(ctx, grad_output):
        gradient = SiLU.gradient(*ctx.saved_tensors, grad_output)
        gradient[..., gradient.shape[-1] // BLOCK * BLOCK :] = 0
        return gradient


class Strides(SiLU):
    """A kernel that takes grad_output to be contiguous."""

    @staticmethod
    def backward(ctx, grad_output):
        shape = grad_output.shape
        flat = grad_output.as_strided((grad_output.numel(),), (1,), grad_output.storage_offset())
        return SiLU.gradient(*ctx.saved_tensors, flat.reshape(shape))


def inputs(dtype=torch.float32):
    return torch.randn(3, 2 * BLOCK, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_right_kernel_passes_in_each_dtype(dtype):
    report = assert_kernel(SiLU, inputs(dtype), torch.nn.functional.silu, dtypes=[dtype])
    assert report.swept.native
    assert {row.dtype for row in report.swept.precision} == {str(dtype).removeprefix("torch.")}
    assert len(report.swept.layouts) > 4
    assert set(report.swept.sizes) == {"8 cut to 7", "3 cut to 2"}


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (Factor, ["GV101", "1.02"]),
        (ShortInside, ["GV601", "digits of float16"]),
        (Tail, ["GV101", "8 cut to 7"]),
        (Strides, ["GV404", "transposed"]),
    ],
)
def test_a_wrong_kernel_raises_with_the_place(kernel, said):
    with pytest.raises(GradientError) as caught:
        assert_kernel(kernel, inputs(), torch.nn.functional.silu)
    assert all(words in str(caught.value) for words in said), str(caught.value)


class Overwrites(SiLU):
    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        gradient = SiLU.gradient(x, grad_output)
        with torch.no_grad():
            x.data.copy_(gradient)
        return gradient


def test_what_an_author_does_on_purpose_can_be_left_out():
    with pytest.raises(GradientError, match="GV403"):
        assert_kernel(Overwrites, inputs(), torch.nn.functional.silu)
    assert_kernel(Overwrites, inputs(), torch.nn.functional.silu, ignore=["GV403"])


def test_a_composite_of_another_function_is_reported():
    with pytest.raises(GradientError, match="GV301"):
        assert_kernel(SiLU.apply, {"x": inputs()}, torch.nn.functional.gelu)


def test_what_cannot_be_asked_is_a_usage_error():
    with pytest.raises(UsageError, match="float64"):
        assert_kernel(SiLU, inputs(), torch.nn.functional.silu, dtypes=[torch.float64])
    with pytest.raises(UsageError, match="composite"):
        assert_kernel(SiLU, inputs(), None)
    with pytest.raises(UsageError, match="floating"):
        gradverify.assert_kernel(SiLU, torch.ones(3, dtype=torch.int64), torch.nn.functional.silu)
