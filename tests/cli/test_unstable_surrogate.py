"""A gradient whose own rounding is beyond the tolerance is neither right nor wrong beside its surrogate."""

import json

import pytest

MODULE = '''
import torch
from torch.autograd import Function


def identity(x):
    return x


def steep(x):
    return torch.sigmoid(4 * x)


def tanh(x):
    return torch.tanh(x)


class Quotient(Function):
    """By a difference quotient with far too small a step, and off by 1e-4."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        h = 1e-12
        return g * ((x + h) - (x - h)) / (2 * h) * 1.0001


class Cancelling(Function):
    """Large numbers cancel; off by 1e-5."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(4 * x)
        return g * ((4 * s * (1 - s) + 1e10) - 1e10) * 1.00001


class FineQuotient(Function):
    """Right, by a difference quotient of the fourth order."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        f, h = torch.tanh, 1e-3
        return g * (8 * (f(x + h) - f(x - h)) - (f(x + 2 * h) - f(x - 2 * h))) / (12 * h)


class Saturated(Function):
    """Right, and nothing but rounding where it saturates."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(4 * x)
        return g * 4 * s * (1 - s)
'''

SPEC = """\
gradverify: 1
module: m.py
functions:
  Quotient: {inputs: {x: [n]}, surrogate: "m:identity"}
  Cancelling: {inputs: {x: [n]}, surrogate: "m:steep"}
  FineQuotient: {inputs: {x: [n]}, surrogate: "m:tanh"}
  Saturated: {inputs: {x: {shape: [n], range: [-60, 60]}}, surrogate: "m:steep"}
"""


@pytest.fixture(scope="module")
def targets(place):
    here = place()
    (here.folder / "m.py").write_text(MODULE)
    (here.folder / "m.gradverify.yaml").write_text(SPEC)
    return {t["name"]: t for t in json.loads(here("check", "m.py", "--format", "json").out)["targets"]}


@pytest.mark.parametrize("name", ["Quotient", "Cancelling"])
def test_an_unstable_gradient_is_inconclusive(targets, name):
    (found,) = [f for f in targets[name]["findings"] if f["severity"] == "warning"]
    assert targets[name]["status"] == "inconclusive"
    assert found["code"] == "GV109"
    assert "unstable" in found["message"]


@pytest.mark.parametrize("name", ["FineQuotient", "Saturated"])
def test_a_stable_one_passes(targets, name):
    assert targets[name]["status"] == "passed"
