"""Stairs: proven flat where no edge is near, and nothing measured but what lies beside one."""

import pytest
import torch
from torch.autograd import Function

from gradverify.verifier.numerics.certificate import Certificate
from gradverify.verifier.numerics.parts import Restricted
from gradverify.verifier.numerics.stairs import beside_edges

RTOL = 1e-7
SPREAD = torch.arange(40, dtype=torch.float64) / 32 + 1.13
"""Small numbers, whose stairs are wide."""


def on_stairs(backward, forward=torch.floor):
    """A map with a backward of its own."""

    class Stairs(Function):
        @staticmethod
        def forward(ctx, x):
            return forward(x)

        @staticmethod
        def backward(ctx, grad_output):
            return backward(grad_output)

    return Stairs.apply


def beside(number, *, by=1e-3):
    """Values of which one lies a little above an integer."""
    x = SPREAD.clone()
    x[7] = number + by
    return x


def far_apart():
    """Large enough for both edges to be near: a stair of width 1 at 200 is as narrow as one of bfloat16."""
    return beside(200, by=0.5)


def test_between_edges_zeros_are_proven(maps):
    assert isinstance(beside_edges(maps.problem_of(torch.floor, SPREAD), rtol=RTOL), Certificate)


def test_a_row_beside_an_edge_is_flat_where_it_stays_on_the_other_side(maps):
    assert isinstance(beside_edges(maps.problem_of(torch.floor, beside(2)), rtol=RTOL), Certificate)


def test_a_row_between_two_edges_is_left_with_what_reaches_it(maps):
    x = far_apart()
    left = beside_edges(
        maps.problem_of(lambda x, y: torch.floor(x * y), x, torch.ones(40).double()), rtol=RTOL
    )
    assert isinstance(left, Restricted)
    assert left.rows == (7,)
    assert left.columns == (7, 47)


@pytest.mark.parametrize("fault", [1e-12, torch.nan])
@pytest.mark.parametrize("entry", [3, 7])
def test_anything_but_zeros_is_not_proven(maps, entry, fault):
    def wrong(g):
        return torch.zeros_like(g).index_fill(0, torch.tensor(entry), fault) * g

    for x in (beside(2), far_apart()):
        assert beside_edges(maps.problem_of(on_stairs(wrong), x), rtol=RTOL) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("seed", range(10))
def test_what_is_rounded_inside_does_not_stand_on_stairs(maps, dtype, seed):
    """At any place between two of its numbers."""
    x = torch.rand(8, generator=torch.Generator().manual_seed(seed)).double() + 1
    rounded = on_stairs(torch.zeros_like, lambda x: x.to(dtype).double())
    assert beside_edges(maps.problem_of(rounded, x), rtol=RTOL) is None


def test_a_forward_that_moves_is_asked_no_further(maps):
    calls = []

    def function(x):
        calls.append(x)
        return torch.where(x > 2, x, 0 * x)

    problem = maps.problem_of(function, SPREAD)
    calls.clear()
    assert beside_edges(problem, rtol=RTOL) is None
    assert len(calls) == 3


def test_at_an_edge_nothing_is_proven(maps):
    assert beside_edges(maps.problem_of(torch.floor, beside(2, by=0.0)), rtol=RTOL) is None


def test_a_forward_that_is_another_with_a_graph_is_not_judged(maps):
    def function(x):
        return torch.floor(x) + (x * 0 + x - x.detach() if x.requires_grad and torch.is_grad_enabled() else 0)

    assert beside_edges(maps.problem_of(function, SPREAD), rtol=RTOL) is None
