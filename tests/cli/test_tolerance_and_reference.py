"""A declared `atol` holds for every grad_output, and forward is compared whatever backward is."""

import json

import forked_command
import pytest
import zoo

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


NAN = """
import torch
from torch.autograd import Function


class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.saved_tensors[0]


def nowhere(x):
    return x * float("nan")


def but_at_zero(x):
    return x**3 / x
"""


@pytest.mark.parametrize(("reference", "status"), [("nowhere", "failed"), ("but_at_zero", "passed")])
def test_a_reference_that_is_nan_says_nothing_at_special_values_alone(tmp_path, reference, status):
    (tmp_path / "m.py").write_text(NAN)
    entry = f"{{inputs: {{x: {{shape: [3], special: [0.0]}}}}, reference: 'm:{reference}'}}"
    (tmp_path / "m.gradverify.yaml").write_text(
        f"gradverify: 1\nmodule: m.py\nfunctions:\n  Square: {entry}\n"
    )
    _, report = zoo.checked(["m.py"], tmp_path)
    (target,) = report["targets"]
    assert target["status"] == status
    assert {f["code"] for f in target["findings"] if f["severity"] == "error"} == (
        {"GV301"} if status == "failed" else set()
    )


LISTS = """
import torch


def weighed(parts, scale):
    return scale * sum(k * p for k, p in enumerate(parts, 1))


def splatted(*given):
    return weighed(given[:-1], given[-1])


class Weighed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scale, *parts):
        ctx.save_for_backward(scale, *parts)
        return weighed(parts, scale)

    @staticmethod
    def backward(ctx, g):
        scale, *parts = ctx.saved_tensors
        of_scale = (g * weighed(parts, 1)).sum(0, keepdim=True)
        return of_scale, *(k * g * scale for k in range(1, 1 + len(parts)))


class InFloat32Alone(Weighed):
    @staticmethod
    def forward(ctx, scale, *parts):
        if scale.dtype == torch.float64:
            raise TypeError("float32 alone")
        return Weighed.forward(ctx, scale, *parts)


def of_a_list(scale, parts):
    return InFloat32Alone.apply(scale, *parts)
"""


def test_a_reference_by_name_gets_lists_whole_or_item_by_item(tmp_path):
    (tmp_path / "m.py").write_text(LISTS)
    inputs = "inputs: {scale: [1], parts: {list: [[n], [n]]}}"
    rows = {"Weighed": "splatted", "InFloat32Alone": "splatted", "of_a_list": "weighed"}
    entries = "".join(
        f"  {name}: {{{inputs}, reference: {{call: 'm:{reference}', arguments: [parts, scale]}}}}\n"
        for name, reference in rows.items()
    )
    (tmp_path / "m.gradverify.yaml").write_text(f"gradverify: 1\nmodule: m.py\nfunctions:\n{entries}")
    document = json.loads(forked_command.run(["check", "m.py", "--format", "json"], tmp_path).out)
    assert {t["name"]: t["status"] for t in document["targets"]} == dict.fromkeys(rows, "passed")
