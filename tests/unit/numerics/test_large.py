"""Jacobians that are not built: wrong entries are found by probes, and exactly they are reported."""

import pytest
import torch
from extent import extent
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gradverify.verifier.numerics import large
from gradverify.verifier.numerics.large import Certificate
from gradverify.verifier.numerics.tolerance import Tolerance
from gradverify.verifier.numerics.verdict import Judged, NotJudged

RTOL = 1e-7


@pytest.fixture(autouse=True)
def _everything_is_large(monkeypatch):
    monkeypatch.setattr(large, "LARGEST_JACOBIAN", 0)


def linear(matrix, claimed, *, differentiable):
    """y = matrix x, whose backward uses another matrix."""

    def backward(ctx, grad_output):
        return claimed.mT @ grad_output

    class Product(Function):
        @staticmethod
        def forward(ctx, x):
            return matrix @ x

    Product.backward = staticmethod(backward if differentiable else once_differentiable(backward))
    return Product.apply


def wrong_places(judged):
    """Multi-indices (row, column) of the wrong entries, in the whole Jacobian."""
    assert isinstance(judged, Judged), judged
    return {
        (judged.outputs.blocks[0].index(i)[0], judged.inputs.blocks[0].index(j)[0])
        for i, j in judged.comparison.wrong.nonzero().tolist()
    }


@settings(max_examples=extent(10, 40), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sets(st.tuples(st.integers(0, 8), st.integers(0, 10)), min_size=1, max_size=4),
    st.sampled_from([1.0, -1e-2, 1e-5]),
    st.booleans(),
)
def test_wrong_entries_are_located(maps_once, places, error, differentiable):
    generator = torch.Generator().manual_seed(5)
    matrix = torch.randn(9, 11, generator=generator, dtype=torch.float64)
    claimed = matrix.clone()
    for place in places:
        claimed[place] += error
    x = torch.randn(11, generator=generator, dtype=torch.float64)
    problem = maps_once.problem_of(linear(matrix, claimed, differentiable=differentiable), x)
    assert wrong_places(large.judge_any_size(problem, Tolerance(RTOL))) == places


@pytest.mark.parametrize("differentiable", [True, False])
def test_a_right_backward_passes(maps, smooth, differentiable):
    function, tensors = maps.drawn(smooth, 0)
    verdict = large.judge_any_size(maps.problem_of(function, *tensors), Tolerance(RTOL))
    assert isinstance(verdict, Certificate | NotJudged), verdict


def test_most_right_backwards_are_covered(maps):
    passed = 0
    for entry in maps.SMOOTH.values():
        function, tensors = maps.drawn(entry, 0)
        verdict = large.judge_any_size(maps.problem_of(function, *tensors), Tolerance(RTOL))
        passed += isinstance(verdict, Certificate)
    assert passed >= len(maps.SMOOTH) - 2


def test_hard_maps_are_never_called_wrong(maps, hard, seeds):
    for seed in seeds:
        function, tensors = maps.drawn(hard, seed)
        verdict = large.judge_any_size(maps.problem_of(function, *tensors), Tolerance(RTOL))
        assert isinstance(verdict, Certificate | NotJudged), (seed, verdict)


def test_too_many_rows_without_a_double_backward(maps, monkeypatch):
    monkeypatch.setattr(large, "MOST_ROWS", 3)
    matrix = torch.eye(5, dtype=torch.float64)
    problem = maps.problem_of(linear(matrix, matrix, differentiable=False), torch.rand(5).double())
    verdict = large.judge_any_size(problem, Tolerance(RTOL))
    assert isinstance(verdict, NotJudged)
    assert "5 rows" in verdict.reason


def test_a_detached_backward_is_not_taken_at_its_word(maps):
    """A double backward that is silently cut gives A v = 0: the dot test sends it to the rows."""

    class Detached(Function):
        @staticmethod
        def forward(ctx, x):
            return x.sin()

        @staticmethod
        def backward(ctx, grad_output):
            return (grad_output * 2).detach()

    x = torch.rand(6).double() + 0.5
    judged = large.judge_any_size(maps.problem_of(Detached.apply, x), Tolerance(RTOL))
    assert wrong_places(judged) == {(i, i) for i in range(6)}
    assert torch.equal(judged.comparison.analytical.diagonal(), torch.full((6,), 2.0).double())
