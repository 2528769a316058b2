"""What backward takes for a constant in forward, or differentiates as something else, is reported."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import Function

from gradverify.verifier.diagnose.edits.forward import _derived

from .diagnosing import findings_on


class Gelu(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        cdf = 0.5 * (1 + torch.erf(x / 2**0.5))
        return x * cdf

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (1 + torch.erf(x / 2**0.5)) / 2


class Gated(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * torch.tanh(x * w).exp() + x.sin()

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        grown = torch.tanh(x * w).exp()
        try:  # such a backward is not run with changes in it
            slope = 1 / (x * w).cosh() ** 2
        finally:
            del ctx
        return g * (grown + x * w * slope + x.cos()), g * x * x * grown * slope


class Noisy(Gelu):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (1 + torch.erf(x / 2**0.5)) / 2 + g * x.sin() * 0.3


def test_what_is_a_constant_to_backward():
    (found,) = findings_on(Gelu, {"x": "bn"})
    assert found.cause == "missing-term"
    assert "if `0.5 * (1 + torch.erf(x / 2 ** 0.5))` (test_forward.py:18) were a constant" in found.hint


def test_a_derivative_that_is_another_ones():
    (found,) = findings_on(Gated, {"x": "bn", "w": "bn"})
    assert (found.input, found.cause) == ("x", "chain-factor")
    assert "the derivative of `torch.tanh(x * w)` in place of that of `torch.tanh(x * w).exp()`" in found.hint


def test_what_no_change_of_forward_gives_has_no_such_cause():
    (found,) = findings_on(Noisy, {"x": "bn"})
    assert "test_forward.py" not in found.hint


def test_what_is_no_number_is_differentiated_in_no_place():
    x = torch.tensor([1.0, -1.0], requires_grad=True)
    with pytest.raises(ValueError, match="no number"):
        _derived(x, x.log())
    assert torch.equal(_derived(x, x.square()), x)
