"""Inputs that are given in float32 or shorter: a right Function is not accused of their few digits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import gradverify
from gradverify.api.gradient_error import GradientError

SHORT = (torch.float32, torch.bfloat16, torch.float16)


class SineTimes(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return torch.sin(x) * w

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return (grad * w * x.cos()).to(x.dtype), (grad * x.sin()).to(w.dtype)


class SineTimesTwice(SineTimes):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        of_x, of_w = SineTimes.backward(ctx, grad)
        return of_x, 2 * of_w


def inputs(*dtypes: torch.dtype) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    drawn = (torch.rand(5, generator=generator, dtype=torch.float64) for _ in dtypes)
    return tuple(t.to(dtype).requires_grad_() for t, dtype in zip(drawn, dtypes, strict=True))


@pytest.mark.parametrize("dtype", SHORT)
def test_a_right_function_is_not_accused(dtype: torch.dtype) -> None:
    """It passes where derived has the same digits; else it is left open, with the reason."""
    try:
        gradverify.verify(SineTimes, inputs(dtype, dtype))
    except GradientError as raised:
        assert dtype is not torch.float32
        assert {found.code for found in raised.findings} == {"GV109"}
        assert "16 bits or fewer" in str(raised)


def test_an_input_of_fewer_digits_than_the_others_has_a_gradient_of_as_few() -> None:
    gradverify.verify(SineTimes, inputs(torch.float64, torch.float32))


def test_a_plain_operation_is_not_accused() -> None:
    gradverify.verify(torch.sin, (torch.rand(3),))


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float32), (torch.float64, torch.float32)])
def test_what_is_wrong_far_beyond_rounding_is_wrong(dtypes: tuple[torch.dtype, ...]) -> None:
    with pytest.raises(GradientError, match="GV101"):
        gradverify.verify(SineTimesTwice, inputs(*dtypes))
