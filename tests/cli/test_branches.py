"""Branches of backward that few values enter: a sign with one input frozen, a window beside a threshold."""

import json

import pytest
import verdicts_only

MODULE = '''
import torch
from torch.autograd import Function


class FrozenSign(Function):
    """Right where both inputs require grad; with the second frozen it takes an absolute value."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        if not ctx.needs_input_grad[1]:
            return g * b.abs(), None
        return g * b if ctx.needs_input_grad[0] else None, g * a


class HardSigmoid(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.clamp(x / 6 + 0.5, 0, 1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.where((x > -3) & (x < 3), g / 6, torch.zeros_like(g))


class HardSigmoidWide(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.clamp(x / 6 + 0.5, 0, 1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.where((x > -3) & (x < 3.2), g / 6, torch.zeros_like(g))


class SoftShrink(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x.abs() > 5, x - 5 * x.sign(), torch.zeros_like(x))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x.abs() > 5)


class SoftShrinkNarrow(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x.abs() > 5, x - 5 * x.sign(), torch.zeros_like(x))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x.abs() > 5.25)


class ClippedSquareWide(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(-7, 7) ** 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x.clamp(-7, 7) * (x.clamp(-7.4, 7.4) == x)
'''

RANGED = "{inputs: {x: {shape: [n], range: [-50, 50]}}}"
SPEC = "gradverify: 1\nmodule: branches.py\nfunctions:\n  FrozenSign: {inputs: {a: [n], b: [n]}}\n" + "".join(
    f"  {name}: {RANGED}\n"
    for name in ("HardSigmoid", "HardSigmoidWide", "SoftShrink", "SoftShrinkNarrow", "ClippedSquareWide")
)


@pytest.fixture
def status(place):
    def run(name, seed):
        here = place("screens")
        (here.folder / "branches.py").write_text(MODULE)
        (here.folder / "branches.gradverify.yaml").write_text(SPEC)
        asked = ("check", f"branches.py::{name}", "--format", "json", "--seed", str(seed))
        (found,) = json.loads(here(*asked, **verdicts_only.VARIABLES).out)["targets"]
        return found["status"]

    return run


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["FrozenSign", "HardSigmoidWide", "SoftShrinkNarrow", "ClippedSquareWide"])
def test_a_branch_that_few_values_enter_is_seen(status, name, seed):
    assert status(name, seed) == "failed"


@pytest.mark.parametrize("name", ["HardSigmoid", "SoftShrink"])
def test_the_same_thresholds_in_forward_and_backward_pass(status, name):
    assert status(name, 0) == "passed"
