"""Declared values at which forward has no value: nothing is verified there, so nothing is green."""

import json

import pytest
from extent import extent

MODULE = """
import torch
from torch.autograd import Function


class Acos(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.acos(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return -g / torch.sqrt(1 - x * x)


class Exp(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.exp(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.exp(x)


class Root(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return (a - b).sqrt()

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        slope = g / (2 * (a - b).sqrt())
        return slope, -slope


class Quotient(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a / b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g / b, -g * a / (b * b)


class MeanOfTies(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return (a - b) / (a.log() - b.log())

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        d = a.log() - b.log()
        m = (a - b) / d
        return g * (1 - m / a) / d, g * (m / b - 1) / d


class Masked(Function):
    @staticmethod
    def forward(ctx, x, mask):
        y = torch.softmax(x.masked_fill(~mask, -torch.inf), -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(-1, keepdim=True)), None
"""

SPEC = """
gradverify: 1
module: ranges.py
functions:
  Acos: {inputs: {x: {shape: [n], range: [0.001, 1000]}}}
  Acos@inside: {inputs: {x: {shape: [n], range: [-0.9, 0.9]}}}
  Exp: {inputs: {x: {shape: [n], range: [-1000, 1000]}}}
  Exp@finite: {inputs: {x: {shape: [n], range: [-100, 100]}}}
  Root: {inputs: {a: {shape: [n], range: [0.1, 10]}, b: {shape: [n], range: [0.1, 10]}}}
  Root@apart: {inputs: {a: {shape: [n], range: [20, 30]}, b: {shape: [n], range: [0.1, 10]}}}
  Quotient: {inputs: {a: [n], b: {shape: [n], range: [-10, 10]}}}
  MeanOfTies:
    dtypes: [float64]
    inputs: {a: {shape: [n], range: [0.001, 1000]}, b: {shape: [n], range: [0.001, 1000]}}
  Masked: {inputs: {x: {shape: [n, 6], range: [-5, 5]}, mask: {shape: [n, 6], dtype: bool}}}
"""

WITHOUT = {"Acos", "Exp", "Root"}
"""Targets whose forward has no value at some declared values."""


@pytest.fixture(scope="module", params=range(extent(1, 3)))
def checked(place, request):
    here = place("cut")
    (here.folder / "ranges.py").write_text(MODULE)
    (here.folder / "ranges.gradverify.yaml").write_text(SPEC)
    ran = here("check", "ranges.py", "--format", "json", "--seed", str(request.param))
    return {t["name"]: t for t in json.loads(ran.out)["targets"]}


def test_what_has_no_value_somewhere_in_its_range_is_inconclusive(checked):
    assert {n: t["status"] for n, t in checked.items() if n in WITHOUT} == dict.fromkeys(
        WITHOUT, "inconclusive"
    )
    for name in WITHOUT:
        messages = [f["message"] for f in checked[name]["findings"] if f["code"] == "GV109"]
        assert any("forward has no value at" in m for m in messages)


def test_what_has_one_everywhere_but_at_single_points_or_behind_a_mask_passes(checked):
    rest = {n: t["status"] for n, t in checked.items() if n not in WITHOUT}
    assert rest == dict.fromkeys(rest, "passed")
    assert len(rest) == 6
