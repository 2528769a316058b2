"""Sizes beyond those of the cases: what a spec leaves open, 0 and 1; and what each effort leaves out."""

from __future__ import annotations

import pytest

from gradverify.model import Effort, TensorInput
from gradverify.model.case import draws_of_decades
from gradverify.spec.plan import plan_function

SPEC = """
gradverify: 1
module: m.py
functions:
  free@Open: {inputs: {x: [b, d], mode: {choices: [mean, sum]}}}
  free@Listed: {sizes: {b: [3, 1], d: 4}, inputs: {x: [b, d]}}
  free@Fixed: {inputs: {x: [4, 3]}}
  free@Even: {inputs: {x: [n, n]}, where: ["n % 2 == 0"]}
  free@Hooked: {sizes: {n: 4}, arguments: "m:make"}
  free@Options: {inputs: {x: [n], a: {choices: [0, 1]}, b: {choices: [0, 1]}, c: {choices: [0, 1]}}}
  free@TwoOptions: {sizes: {n: [4, 2]}, inputs: {x: [n], a: {choices: [0, 1]}, b: {choices: [0, 1]}}}
  free@Every:
    cases: product
    inputs: {x: [2], a: {choices: [0, 1]}, b: {choices: [0, 1]}, c: {choices: [0, 1]}}
  free@Many:
    inputs: {x: [2], a: {choices: [0, 1, 2, 3]}, b: {choices: [0, 1, 2, 3]}, c: {choices: [0, 1, 2, 3]}}
  free@Constants:
    inputs:
      x: [n]
      weight: {shape: [n], requires_grad: false}
      index: {shape: [n], dtype: int64, range: [0, n]}
      buffer: {shape: [n], mutated: true}
      parts: {list: [{shape: [n], requires_grad: false}]}
      joined: {concat: [{shape: [n, 2]}, {shape: [n, 3]}], requires_grad: false}
  free@TallAlone: {sizes: {n: [5, 2], d: [1, 3]}, where: ["n >= d"], inputs: {x: [n, d]}}
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
    sizes = ("b=5,d=4", "b=3,d=3", "b=1,d=3", "b=4,d=1")
    assert ids(found) == [f"{said},mode={mode}" for mode in ("mean", "sum") for said in sizes]
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
    assert plan("Open").degenerate == ()
    at_0 = [f"{said},mode={mode}" for mode in ("mean", "sum") for said in ("b=0,d=3", "b=4,d=0")]
    assert ids(plan("Open", Effort.THOROUGH).degenerate) == at_0
    assert ids(plan("Listed").degenerate) == ["b=4,d=4", "b=3,d=5"]
    everywhere = ["b=0,d=4", "b=4,d=4", "b=3,d=0", "b=3,d=1", "b=3,d=5"]
    assert ids(plan("Listed", Effort.THOROUGH).degenerate) == everywhere


def test_sizes_that_are_listed_odd_and_even_have_no_next_one(plan):
    assert ids(plan("TallAlone").degenerate) == ["n=5,d=4"]
    assert plan("Product").degenerate == ()


def test_each_effort_says_what_it_leaves_out(plan):
    quick, normal, thorough = (" and ".join(plan("Product", effort).left_out) for effort in Effort)
    assert "other cases" in quick
    assert "extreme and special values" in quick
    assert "other cases" not in normal
    assert "sizes 0 and 1" in normal
    said = "more than two changes of a call at once (layouts, frozen inputs, undefined grad_outputs)"
    order = "other orders of sizes than those of its cases"
    assert thorough == f"{order} and torch.compile (--select GV503) and {said}"
    assert "sizes 0 and 1" not in " ".join(plan("Open").left_out)


def test_combinations_of_options_that_pairs_leave_out(plan):
    found = plan("Options")
    together = [case for case in found.open_sized if dict(case.sizes) == {"n": 4}]
    assert len(found.cases) == len(together) == 4
    assert len({case.options for case in (*found.cases, *together)}) == 8
    assert not any("beyond pairs" in said for said in found.left_out)


@pytest.mark.parametrize("name", ["TwoOptions", "Every"])
def test_nothing_is_left_out_of_two_options_or_of_a_product(plan, name):
    found = plan(name)
    assert not {case.options for case in found.open_sized} - {case.options for case in found.cases}


def test_so_many_combinations_of_options_and_the_rest_is_said(plan):
    found = plan("Many")
    assert len(found.open_sized) == 16
    assert "combinations of sizes and options beyond pairs" in found.left_out


@pytest.mark.parametrize("effort", Effort)
def test_gradients_that_are_not_asked_for_are_left_out_and_said(plan, effort):
    said = "the gradients of `weight`, `parts`, `joined` (requires_grad: false)"
    assert plan("Constants", effort).left_out[0] == said
    assert not any("requires_grad" in one for one in plan("Open", effort).left_out)


def test_no_combination_breaks_a_condition(plan):
    found = plan("TallAlone")
    judged = [dict(case.sizes) for case in (*found.cases, *found.open_sized)]
    assert judged and all(sizes["n"] >= sizes["d"] for sizes in judged)


def test_each_value_of_an_option_is_beside_the_base_case(plan):
    at_other_sizes = ["n=2,a=0,b=0", "n=2,a=1,b=1"]
    assert ids(plan("TwoOptions").open_sized) == ["n=4,a=0,b=1", "n=4,a=1,b=0", *at_other_sizes]


def test_few_combinations_with_listed_sizes_are_all_judged(plan):
    found = plan("Product")
    judged = {case.sizes for case in (*found.cases, *found.open_sized)}
    assert (len(found.cases), len(judged)) == (4, 8)
    assert not any("beyond pairs" in said for said in found.left_out)


@pytest.mark.parametrize("ends", [(-1.0, 1.0), (-100.0, 100.0)])
def test_an_empty_tensor_takes_no_draws_of_its_range(ends):
    assert draws_of_decades(TensorInput("x", (0, 3), range=ends)) == 0
