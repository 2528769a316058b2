"""What the witnesses decide: few calls, what forward hides, a part of a declared range, and who spoke."""

from __future__ import annotations

import pytest
import zoo

MODULE = """
import torch
from torch.autograd import Function


class Softmax(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(-1, keepdim=True))


class SoftmaxOfMean(Softmax):
    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).mean(-1, keepdim=True))


class NormHidden(Function):
    @staticmethod
    def forward(ctx, x):
        n = x.norm().item()
        ctx.save_for_backward(x)
        return x / n

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / x.norm()


class UpperFifth(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.where(x > 2, 1.02 * x.cos(), x.cos())


class SingleNumPy(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(x.detach().numpy().astype("float32") ** 2).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x


class Counts(Function):
    calls = 0

    @staticmethod
    def forward(ctx, x):
        Counts.calls += 1
        return x * Counts.calls

    @staticmethod
    def backward(ctx, g):
        return g
"""

SPEC = """
gradverify: 1
module: module.py
functions:
  Softmax: {sizes: {b: [3, 1], d: [5, 3]}, inputs: {x: [b, d]}}
  SoftmaxOfMean: {sizes: {b: [3, 1], d: [5, 3]}, inputs: {x: [b, d]}}
  NormHidden: {inputs: {x: [n]}, ignore: {GV2: "first order only"}}
  UpperFifth: {inputs: {x: {shape: [4], range: [-2, 3]}}}
  SingleNumPy: {inputs: {x: [n]}, ignore: {GV2: "first order only"}}
  Counts: {inputs: {x: [n]}}
"""

MOST_CALLS = {"Softmax": 320, "SoftmaxOfMean": 250}
"""Of everything, with a spec of four cases."""


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("witnesses")
    (folder / "module.py").write_text(MODULE)
    (folder / "module.gradverify.yaml").write_text(SPEC)
    _, report = zoo.checked(["module.py"], folder)
    return {t["name"]: t for t in report["targets"]}


VERDICTS = {
    "Softmax": ("passed", set()),
    "SoftmaxOfMean": ("failed", {"GV101"}),
    "NormHidden": ("failed", {"GV101"}),
    "UpperFifth": ("failed", {"GV101"}),
    "SingleNumPy": ("passed", set()),
    "Counts": ("inconclusive", set()),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_verdict(targets, name):
    status, errors = VERDICTS[name]
    found = {f["code"] for f in targets[name]["findings"] if f["severity"] == "error"}
    assert (targets[name]["status"], found) == (status, errors)


@pytest.mark.parametrize("name", MOST_CALLS)
def test_few_calls(targets, name):
    assert sum(targets[name]["evaluations"].values()) <= MOST_CALLS[name]


def test_who_spoke(targets):
    assert targets["Softmax"]["witnesses"] == ["derived", "values"]
    assert targets["SingleNumPy"]["witnesses"] == ["values"]


def test_a_counter_in_forward_is_named(targets):
    (finding,) = (f for f in targets["Counts"]["findings"] if f["code"] == "GV109")
    assert "forward gives other values at each call" in finding["message"]
