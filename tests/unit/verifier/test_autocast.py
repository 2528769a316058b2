"""When autocast is judged: asked for, or declared by the decorator of forward."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.amp import custom_fwd
from torch.autograd import Function

from gradverify.model import Case, Effort, Outcome, Point, Settings, Target, TargetKind, TensorInput
from gradverify.verifier.questions.dtypes.asked import autocast
from gradverify.verifier.questions.subject import Subject, prepare

CASE = Case("base", 11, inputs=(TensorInput("x", (4, 6)), TensorInput("w", (6, 5))))


def product(device=""):
    """A product whose backward mixes dtypes; decorated for a device, or not."""
    decorated = functools.partial(custom_fwd, device_type=device) if device else lambda forward: forward

    class Product(Function):
        @staticmethod
        @decorated
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        def backward(ctx, grad_output):
            x, w = ctx.saved_tensors
            return grad_output @ w.t(), x.t() @ grad_output

    return Product


def judged(function, *dtypes, **settings):
    target = Target("Product", "Product", TargetKind.FUNCTION, "made.py", 1)
    subject = Subject(target, function.apply, Settings(**settings), function_class=function, dtypes=dtypes)
    sample = prepare(subject, CASE, Point.TYPICAL, 0)
    return autocast(sample)


@pytest.mark.parametrize(
    ("device", "settings", "runs"),
    [
        ("", {}, False),
        ("", {"autocast": True}, True),
        ("", {"select": ("GV603",)}, True),
        ("", {"select": ("GV6",)}, False),
        ("cpu", {}, True),
        ("cpu", {"effort": Effort.QUICK}, False),
        ("cpu", {"ignore": ("GV603",)}, False),
        ("cuda", {}, False),
    ],
)
def test_it_runs_where_it_is_asked_for_or_declared(device, settings, runs):
    found = judged(product(device), **settings)
    assert [f.code for f in found.findings] == ["GV603"] * runs
    assert found.outcome is (Outcome.FAILED if runs else Outcome.NOT_RUN)
    assert found.capabilities == ((("autocast", "wrong"),) if runs else ())


def test_listed_dtypes_of_16_bits_are_those_that_it_casts_to():
    found = judged(product(), "float32", "float16", autocast=True)
    assert {row.dtype for row in found.swept.precision} == {"autocast float16"}
    assert "torch.float16" in found.findings[0].message


def test_autocast_is_off_again_when_a_forward_raises():
    class Raises(Function):
        @staticmethod
        def forward(ctx, x, w):
            if torch.is_autocast_enabled("cpu"):
                raise RuntimeError("not under autocast")
            return x @ w

        @staticmethod
        def backward(ctx, grad_output):
            return None, None

    found = judged(Raises, autocast=True)
    assert not torch.is_autocast_enabled("cpu")
    assert found.capabilities == (("autocast", "no"),)
    assert found.outcome is Outcome.NOT_RUN
