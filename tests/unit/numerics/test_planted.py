"""Errors planted in a right backward are found where they are, and nowhere else."""

import math

import pytest
import torch
from extent import extent
from hypothesis import given, settings
from hypothesis import strategies as st

from gradverify.verifier.numerics.verdict import Judged

ROWS, COLUMNS = 4, 5


def base(x):
    """A smooth map of five numbers to four with a dense Jacobian of order one."""
    weights = torch.linspace(0.3, 1.9, ROWS * COLUMNS, dtype=torch.float64).reshape(ROWS, COLUMNS)
    return torch.tanh(weights @ x.sin()) + weights.sin() @ x


POINT = torch.tensor([0.25, -0.75, 1.25, -1.5, 0.5], dtype=torch.float64)
JACOBIAN = torch.func.jacrev(base)(POINT)


def planted(delta):
    """The map with a matrix added to the Jacobian that its backward claims."""

    class Planted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return base(x)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                leaf = x.detach().requires_grad_()
                (gradient,) = torch.autograd.grad(base(leaf), leaf, g)
            return gradient + g @ delta

    return Planted.apply


def assert_found(maps, delta):
    judged = maps.judged(planted(delta), POINT)
    assert isinstance(judged, Judged)
    assert torch.equal(judged.comparison.wrong, delta != 0)
    assert not judged.comparison.imprecise.any()


def scale(row):
    """What the tolerance of a row is relative to, at most."""
    return JACOBIAN[row].abs().max().item() + JACOBIAN[row].abs().median().item()


sizes = st.floats(math.log10(1e-6), 1.0).map(lambda e: 10.0**e)
entries = st.tuples(st.integers(0, ROWS - 1), st.integers(0, COLUMNS - 1))


@settings(max_examples=extent(20, 60), deadline=None)
@given(entry=entries, size=sizes, sign=st.sampled_from((-1.0, 1.0)))
def test_one_entry(maps_once, entry, size, sign):
    delta = torch.zeros(ROWS, COLUMNS, dtype=torch.float64)
    delta[entry] = sign * size * scale(entry[0])
    assert_found(maps_once, delta)


@settings(max_examples=extent(10, 30), deadline=None)
@given(places=st.sets(entries, min_size=2, max_size=8), size=sizes)
def test_several_entries(maps_once, places, size):
    delta = torch.zeros(ROWS, COLUMNS, dtype=torch.float64)
    for place in places:
        delta[place] = size * scale(place[0])
    assert_found(maps_once, delta)


@pytest.mark.parametrize("factor", [1 + 1e-5, 2.0, -1.0, 0.5])
@pytest.mark.parametrize("row", range(ROWS))
def test_scaled_row(maps, row, factor):
    delta = torch.zeros(ROWS, COLUMNS, dtype=torch.float64)
    delta[row] = (factor - 1) * JACOBIAN[row]
    judged = maps.judged(planted(delta), POINT)
    # The tolerance counts the row's median too: of a small entry, 1e-5 may lie within it.
    visible = delta.abs() > 1e-6 * scale(row)
    assert (judged.comparison.wrong | ~visible).all()
    assert not judged.comparison.wrong[delta == 0].any()


@pytest.mark.parametrize("column", range(COLUMNS))
def test_zeroed_column(maps, column):
    delta = torch.zeros(ROWS, COLUMNS, dtype=torch.float64)
    delta[:, column] = -JACOBIAN[:, column]
    assert_found(maps, delta)


@pytest.mark.parametrize("size", [3e-9, 3e-8])
def test_below_the_tolerance_it_is_imprecise(maps, size):
    delta = torch.zeros(ROWS, COLUMNS, dtype=torch.float64)
    delta[1, 2] = size * JACOBIAN[1].abs().median()
    judged = maps.judged(planted(delta), POINT)
    assert not judged.comparison.wrong.any()
    assert torch.equal(judged.comparison.imprecise, delta != 0)


class Rough(torch.autograd.Function):
    """Backward with an error that looks like rounding: it changes with the last bits of the input."""

    size = 0.0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos() * (1 + Rough.size * torch.sin(x * 1e17))


@pytest.mark.parametrize(("size", "excused"), [(2e-10, True), (3e-9, True), (1e-5, False)])
def test_own_rounding_passes_nothing_above_rtol(maps, monkeypatch, size, excused):
    monkeypatch.setattr(Rough, "size", size)
    comparison = maps.judged(Rough.apply, POINT).comparison
    passed = comparison.covered & ~(comparison.wrong | comparison.imprecise)
    assert passed.all() == excused


class Spoils(torch.autograd.Function):
    """Overwrites what it saved: right on a fresh graph, wrong the second time."""

    @staticmethod
    def forward(ctx, x):
        ctx.kept = x.cos()
        return x.sin() + x.sum()

    @staticmethod
    def backward(ctx, g):
        gradient = g * ctx.kept + g.sum()
        ctx.kept.zero_()
        return gradient


class Once(torch.autograd.Function):
    """Cannot run twice at all."""

    @staticmethod
    def forward(ctx, x):
        ctx.kept = x.cos()
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        gradient = g * ctx.kept
        del ctx.kept
        return gradient


@pytest.mark.parametrize("function", [Spoils, Once])
def test_a_spoilt_graph_does_not_spoil_other_rows(maps, function):
    comparison = maps.judged(function.apply, POINT).comparison
    assert not comparison.wrong.any()
    assert comparison.covered.all()


def test_every_call_gets_tensors_of_its_own(maps):
    def greedy(x):
        y = x.sin()
        if not torch.is_grad_enabled():
            x.fill_(7.0)
        return y

    comparison = maps.judged(greedy, POINT).comparison
    assert not comparison.wrong.any()
    assert comparison.covered.all()


def test_error_in_the_double_backward_is_found(maps):
    class Detaches(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * 3 * x * x.detach()

    first, second = maps.judged_twice(Detaches.apply, POINT)
    assert not first.comparison.wrong.any()
    expected = torch.zeros_like(second.comparison.wrong)
    expected[:, : POINT.numel()] = torch.eye(POINT.numel(), dtype=torch.bool)
    assert torch.equal(second.comparison.wrong, expected)


class FirstOfGiven(torch.autograd.Function):
    """-log of the chance that a list of one is in its order, which is none: exp(s) exp(-s) - 1 is zero."""

    @staticmethod
    def forward(ctx, s):
        tails = torch.logcumsumexp(s.flip(1), 1).flip(1)
        ctx.save_for_backward(s, tails)
        return (tails - s).sum(1)

    @staticmethod
    def backward(ctx, g):
        s, tails = ctx.saved_tensors
        return g[:, None] * (torch.exp(s) * torch.cumsum(torch.exp(-tails), 1) - 1)


@pytest.mark.parametrize("rows", [2, 60])
@pytest.mark.parametrize("size", [0.01, 1.0, 30.0])
def test_what_cancels_where_the_derivative_is_zero_is_rounding(maps, rows, size):
    for seed in range(8):
        generator = torch.Generator().manual_seed(seed)
        s = size * torch.randn(rows, 1, generator=generator, dtype=torch.float64)
        assert not maps.judged(FirstOfGiven.apply, s).comparison.wrong.any()


class TinyUnits(torch.autograd.Function):
    """In units so small that every entry is below the rounding of one; backward forgets the mask."""

    @staticmethod
    def forward(ctx, x, mask):
        ctx.save_for_backward(x)
        return 1e-20 * x**2 * mask

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2e-20 * x * g, None


def test_a_gradient_in_tiny_units_is_wrong_where_it_should_be_zero(maps):
    x = torch.linspace(0.5, 2.0, 6, dtype=torch.float64)
    mask = torch.tensor([1.0, 0, 1, 1, 0, 1], dtype=torch.float64)
    wrong = maps.judged(lambda x: TinyUnits.apply(x, mask), x).comparison.wrong
    assert wrong.nonzero().tolist() == [[1, 1], [4, 4]]


class Surplus(torch.autograd.Function):
    """What the logarithm of a sum of exponentials exceeds its terms by: nothing, where there is one."""

    @staticmethod
    def forward(ctx, x):
        y = x.logsumexp(1)
        ctx.save_for_backward(x, y)
        return y - x.sum(1)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g[:, None] * (x.exp() * (-y).exp()[:, None] - 1)


@pytest.mark.parametrize("rows", [2, 60])
def test_a_gradient_that_cancels_to_nothing_is_right_where_nothing_is_right(maps, rows):
    seen = 0
    for seed in range(20):
        x = torch.randn(rows, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        comparison = maps.judged(Surplus.apply, x).comparison
        seen += int((comparison.analytical != 0).any())
        assert not (comparison.wrong | comparison.imprecise).any()
    assert seen >= 5, "these points have no rounding to be excused"


def test_a_small_gradient_is_wrong_all_the_same(maps):
    class Small(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return 1e-15 * x.sin()

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2e-15 * g * x.cos()

    comparison = maps.judged(Small.apply, POINT).comparison
    assert torch.equal(comparison.wrong, torch.eye(COLUMNS, dtype=torch.bool))
