"""A declared `atol` holds for every grad_output, and forward is compared whatever backward is."""

import json

import pytest

MODULE = """
import torch
from torch.autograd import Function


def five_squares(x):
    return 5 * x * x


class Slightly(Function):
    @staticmethod
    def forward(ctx, x):
        return x - x.mean(-1, keepdim=True)

    @staticmethod
    def backward(ctx, g):
        return g - g.mean(-1, keepdim=True) * (1 - 3e-9)


class BothWrong(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 2 * x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * g * x
"""

SPEC = """
gradverify: 1
module: both.py
functions:
  Slightly: {inputs: {x: [b, n]}, tolerance: {atol: 1e-6}}
  Slightly@exactly: {inputs: {x: [b, n]}}
  BothWrong: {inputs: {x: [n]}, reference: "both:five_squares"}
"""


@pytest.fixture(scope="module")
def errors(place):
    here = place("cut")
    (here.folder / "both.py").write_text(MODULE)
    (here.folder / "both.gradverify.yaml").write_text(SPEC)
    targets = json.loads(here("check", "both.py", "--format", "json").out)["targets"]
    return {t["name"]: {f["code"] for f in t["findings"] if f["severity"] == "error"} for t in targets}


def test_what_the_tolerance_allows_is_no_error_for_any_grad_output(errors):
    assert errors["Slightly"] == set()
    assert errors["Slightly@exactly"] == {"GV101"}


def test_forward_is_compared_with_the_reference_where_backward_is_wrong_too(errors):
    assert errors["BothWrong"] == {"GV101", "GV301"}
