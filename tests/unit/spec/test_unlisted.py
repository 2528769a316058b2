"""Sizes beyond those of the cases: what a spec leaves open, 0 and 1; and what each effort leaves out."""

from __future__ import annotations

import pytest

from gradverify.model import Effort
from gradverify.spec import plan_function

SPEC = """
gradverify: 1
module: m.py
functions:
  free@Open: {inputs: {x: [b, d], mode: {choices: [mean, sum]}}}
  free@Listed: {sizes: {b: [3, 1], d: 4}, inputs: {x: [b, d]}}
  free@Fixed: {inputs: {x: [4, 3]}}
  free@Even: {inputs: {x: [n, n]}, where: ["n % 2 == 0"]}
  free@Hooked: {sizes: {n: 4}, arguments: "m:make"}
  free@Product: {sizes: {a: [2, 3], b: [4, 5], c: [6, 7]}, inputs: {x: [a, b, c]}}
"""


@pytest.fixture
def plan(read):
    spec = read(SPEC)
    return lambda name, effort=Effort.NORMAL: plan_function(spec, f"free@{name}", effort=effort)


def ids(cases):
    return [case.id for case in cases]


def test_symbolic_shapes_leave_sizes_open(plan):
    found = plan("Open").open_sized
    assert ids(found) == ["b=5,d=4,mode=mean", "b=3,d=3,mode=mean", "b=1,d=3,mode=mean", "b=4,d=1,mode=mean"]
    assert found[0].inputs[0].shape == (5, 4)
    assert len({case.seed for case in found}) == len(found)


@pytest.mark.parametrize("name", ["Listed", "Fixed", "Hooked"])
def test_listed_sizes_do_not(plan, name):
    assert plan(name).open_sized == ()


def test_conditions_hold(plan):
    assert plan("Even").open_sized == ()
    assert ids(plan("Even", Effort.THOROUGH).degenerate) == ["n=0"]


def test_quick_has_none_of_them(plan):
    assert plan("Open", Effort.QUICK).open_sized == ()


def test_degenerate_sizes_that_nobody_listed_are_for_a_thorough_run(plan):
    assert plan("Open").degenerate == plan("Listed").degenerate == ()
    assert ids(plan("Open", Effort.THOROUGH).degenerate) == ["b=0,d=3,mode=mean", "b=4,d=0,mode=mean"]
    assert ids(plan("Listed", Effort.THOROUGH).degenerate) == ["b=0,d=4", "b=3,d=0", "b=3,d=1"]


def test_each_effort_says_what_it_leaves_out(plan):
    quick, normal, thorough = (" and ".join(plan("Product", effort).left_out) for effort in Effort)
    assert "other cases" in quick
    assert "extreme and special values" in quick
    assert "combinations beyond pairs" in normal
    assert "other cases" not in normal
    assert "sizes 0 and 1" in normal
    assert thorough == "torch.compile (--select GV503)"
    assert "sizes 0 and 1" not in " ".join(plan("Open").left_out)
