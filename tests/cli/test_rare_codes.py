"""Codes that no Function can have: an output that autograd lost, a reference that is not right."""

from __future__ import annotations

import pytest
import zoo

MODULE = """
import torch
from torch.autograd import Function


class Normalized(torch.nn.Module):
    def forward(self, x):
        norm = x.norm().item()
        return x / x.norm(), torch.full((2,), 1 / norm, dtype=x.dtype)


class Kept(torch.nn.Module):
    def forward(self, x):
        return x / x.norm(), 1 / x.norm()


def cubed(ctx, x):
    ctx.save_for_backward(x)
    return x**3


class Cube(Function):
    forward = staticmethod(cubed)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * g * x**2


class Cubed(Cube):
    pass


class Sine(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()


class _Halfway(Function):
    forward = staticmethod(cubed)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * g * x * x.detach()


def halfway(x):
    return _Halfway.apply(x)


def flat(x):
    return x.detach().sin() + 0 * x


def power(x):
    return x**3
"""

SPEC = """
gradverify: 1
module: module.py
functions:
  Normalized: {init: {}, inputs: {x: [3, 4]}}
  Kept: {init: {}, inputs: {x: [3, 4]}}
  Cube: {inputs: {x: [3, 4]}, reference: "module:halfway"}
  Cubed: {inputs: {x: [3, 4]}, reference: "module:power"}
  Sine: {inputs: {x: [3, 4]}, reference: "module:flat"}
"""

EXPECTED = {
    "Normalized": ("failed", {("GV003", "error")}),
    "Kept": ("passed", set()),
    "Cube": ("passed", {("GV303", "warning")}),
    "Cubed": ("passed", set()),
    "Sine": ("passed", {("GV302", "warning")}),
}


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rare")
    (folder / "module.py").write_text(MODULE)
    (folder / "module.gradverify.yaml").write_text(SPEC)
    _, report = zoo.checked(["module.py"], folder)
    return {t["name"]: t for t in report["targets"]}


@pytest.mark.parametrize("name", EXPECTED)
def test_it_has_its_code(targets, name):
    found = {(f["code"], f["severity"]) for f in targets[name]["findings"] if f["severity"] != "note"}
    assert (targets[name]["status"], found) == EXPECTED[name]
