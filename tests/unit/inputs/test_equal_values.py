"""Inputs that share values in one draw: where they meet, in pairs, and as far as the spec allows."""

import pytest
import torch

from gradverify.model import Case, Effort, Point, TensorInput
from gradverify.model.case import EQUAL_INPUTS, points_of
from gradverify.verifier.inputs.arguments import build_arguments

AT = (Point.SPECIAL, EQUAL_INPUTS)


def drawn(*inputs: TensorInput, seed: int = 0) -> list[torch.Tensor]:
    case = Case("base", seed, inputs=inputs)
    assert AT in points_of(case)
    return [a.value for a in build_arguments(case, *AT, "cpu")]


@pytest.mark.parametrize("seed", range(3))
def test_entries_of_one_place_are_equal(seed):
    x, y = drawn(TensorInput("x", (3, 4)), TensorInput("y", (3, 4)), seed=seed)
    assert bool((x == y).all())


def test_no_three_entries_are_equal():
    x, low, high = drawn(*(TensorInput(name, (6,)) for name in ("x", "low", "high")))
    assert int((x == low).sum()) == int((x == high).sum()) == 3
    assert not (low == high).any()


@pytest.mark.parametrize("seed", range(3))
def test_the_other_bound_lies_on_both_sides_of_a_tie(seed):
    x, low, high = drawn(*(TensorInput(name, (12,)) for name in ("x", "low", "high")), seed=seed)
    assert {bool(side) for side in (high > x)[x == low]} == {True, False}
    assert {bool(side) for side in (low < x)[x == high]} == {True, False}


def test_values_keep_to_what_the_spec_says_of_the_input_that_gets_them():
    x, y = drawn(TensorInput("x", (40,)), TensorInput("y", (40,), range=(0.5, 5.0), avoid=(1.0,)))
    assert 0 < int((x == y).sum()) < 40
    assert bool((y > 0.5).all()) and bool(((y - 1).abs() > 0.05).all())


@pytest.mark.parametrize(
    "other",
    [
        TensorInput("y", (3,)),
        TensorInput("y", (1,)),
        TensorInput("y", (4,), domain="negative"),
        TensorInput("y", (4,), range=(-3.0, -2.0)),
        TensorInput("y", (4,), requires_grad=False),
        TensorInput("y", (4,), distinct=True),
        TensorInput("y", (4,), structure="sorted"),
        TensorInput("y", (4,), dtype="int64"),
    ],
)
def test_there_is_no_such_draw_where_inputs_cannot_be_equal(other):
    case = Case("base", 0, inputs=(TensorInput("x", (4,), domain="positive"), other))
    assert AT not in points_of(case)


def test_a_quick_run_has_no_such_draw():
    case = Case("base", 0, inputs=(TensorInput("x", (4,)), TensorInput("y", (4,))))
    assert AT not in points_of(case, Effort.QUICK)
