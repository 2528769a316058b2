"""Own round-off excuses a right Function wherever it is compared: with its rows, and with a reference."""

import json

import pytest

MODULE = """\
import torch
from torch.autograd import Function


class OneMinusCosine(Function):
    \"\"\"Exactly 0 near 0, where its reference still has all its digits.\"\"\"

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 1 - torch.cos(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.sin(x)


class Softmax(Function):
    \"\"\"What is left of its gradient where it saturates is the round-off of its sum.\"\"\"

    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(-1, keepdim=True))


def by_sine(x):
    return 2 * torch.sin(x / 2) ** 2


def by_exp(x):
    e = torch.exp(x - x.amax(-1, keepdim=True).detach())
    return e / e.sum(-1, keepdim=True)


def twice(x):
    return 2 * by_sine(x)
"""

SPEC = """\
gradverify: 1
module: m.py
functions:
  OneMinusCosine:
    inputs: {x: {shape: [5], range: [1e-9, 1e-8]}}
    reference: "m:by_sine"
    ignore: {GV2: "forward is flat"}
  OneMinusCosine@twice: {target: OneMinusCosine, inputs: {x: {shape: [5]}}, reference: "m:twice"}
  Softmax@softmax100:
    target: Softmax
    inputs: {x: {shape: [4, 6], range: [-100, 100]}}
    reference: "m:by_exp"
"""


@pytest.fixture(scope="module")
def targets(place):
    here = place()
    (here.folder / "m.py").write_text(MODULE)
    (here.folder / "m.gradverify.yaml").write_text(SPEC)
    ran = here("check", "m.py", "--seed", "3", "--format", "json")
    return {target["name"]: target for target in json.loads(ran.out)["targets"]}


@pytest.mark.parametrize("name", ["OneMinusCosine", "Softmax@softmax100"])
def test_a_reference_that_has_more_digits_accuses_nobody(targets, name):
    assert not [f for f in targets[name]["findings"] if f["severity"] == "error"]


def test_a_wrong_one_is_wrong(targets):
    assert "GV301" in {f["code"] for f in targets["OneMinusCosine@twice"]["findings"]}


def test_the_rows_of_a_saturated_attention_add_up(place):
    """At this seed what is left of its gradients is the round-off of numbers a million times as large."""
    ran = place("../zoo/saturated")("check", "right.py::Attention@100", "--seed", "1", "--format", "json")
    assert json.loads(ran.out)["targets"][0]["status"] == "passed"
