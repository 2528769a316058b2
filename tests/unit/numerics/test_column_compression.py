"""Columns that are measured together: fewer forwards for the same verdict, entry by entry."""

from unittest import mock

import pytest
import torch
from extent import extent
from torch.autograd import Function

from gradverify.verifier.numerics import column_compression
from gradverify.verifier.numerics.column_compression import (
    Columns,
    Compression,
    columns_apart,
    reached_outputs,
)
from gradverify.verifier.numerics.compare import compare
from gradverify.verifier.numerics.directional_derivative import agreement
from gradverify.verifier.numerics.jacobian import numerical_jacobian
from gradverify.verifier.numerics.probes import tangent_of
from gradverify.verifier.numerics.problem import Layout
from gradverify.verifier.numerics.sampling import Sampler
from gradverify.verifier.numerics.tolerance import Tolerance
from gradverify.verifier.numerics.verdict import Judged, centre_of, judge, remeasured

RTOL = 1e-7
N = 24


COPIES = extent(4, 12)
"""Times that a small map is repeated, so that there are columns enough."""


def product(matrix, claimed):
    """y = matrix x, whose backward uses another matrix."""

    class Product(Function):
        @staticmethod
        def forward(ctx, x):
            return matrix @ x

        @staticmethod
        def backward(ctx, grad_output):
            return claimed.mT @ grad_output

    return Product.apply


def diagonal(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.diag(torch.rand(N, generator=generator, dtype=torch.float64) + 0.5)


def claiming(function, change=lambda gradient: gradient, derivative_of=None):
    """The function with `change` made to each gradient that torch gives for it, or for another one."""
    differentiated = function if derivative_of is None else derivative_of

    class Claim(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            with torch.enable_grad():
                return function(x.detach()).detach()

        @staticmethod
        def backward(ctx, grad_output):
            x = ctx.saved_tensors[0].detach().requires_grad_()
            with torch.enable_grad():
                (gradient,) = torch.autograd.grad(differentiated(x), x, grad_output)
            return change(gradient)

    return Claim.apply


def repeated(entry, seed):
    """`COPIES` independent copies of a map of one real tensor, and their inputs; None if it has others."""
    function, draw = entry
    generator = torch.Generator().manual_seed(1000 + seed)
    parts = torch.stack([draw(generator) for _ in range(COPIES)])
    results = function(parts[0])
    if not isinstance(results, torch.Tensor) or results.is_complex() or parts.is_complex():
        return None
    return (lambda x: torch.stack([function(part) for part in x.unbind(0)])), parts


def mixed(function, x):
    """The same map with every output a sum of all of its outputs."""
    rows = function(x).numel()
    generator = torch.Generator().manual_seed(3)
    weights = torch.randn(20, rows, generator=generator, dtype=torch.float64)
    return lambda t: weights @ function(t).reshape(-1)


def counted_alone(maps, function, x):
    """The same by single columns."""
    with mock.patch.object(Compression, "measured", return_value=None):
        return counted(maps, function, x, Columns.TOGETHER)


def counted(maps, function, x, columns):
    problem = maps.problem_of(function, x)
    judged = judge(problem, Tolerance(RTOL), columns=columns)
    assert isinstance(judged, Judged), judged
    return judged, problem.counter.forward


def off_by_one_part(gradient):
    changed = gradient.clone()
    changed[..., -1] *= 1 + 1e-5
    return changed


def zero_in_the_middle(gradient):
    changed = gradient.clone()
    changed.reshape(-1)[gradient.numel() // 2] = 0
    return changed


CHANGES = {
    "factor": lambda g: 1.5 * g,
    "zero": torch.zeros_like,
    "a slice": off_by_one_part,
    "one entry zero": zero_in_the_middle,
    "rolled": lambda g: g.roll(1, dims=0),
}

MAPS = {
    "elementwise": (lambda x: x.sin(), (8, 8)),
    "softmax": (lambda x: x.softmax(-1), (8, 8)),
    "cumsum": (lambda x: (x * x).cumsum(-1), (8, 8)),
    "norm of all": (lambda x: x / x.norm(), (8, 8)),
    "two sums": (lambda x: torch.stack([x.sum(), x.prod(-1).sum()]), (16, 4)),
    "windows": (lambda x: x.unfold(0, 3, 1).prod(-1), (64,)),
}


def at(shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", MAPS)
def test_few_forwards_find_what_single_columns_find(maps, name, change):
    function, shape = MAPS[name]
    wrong = claiming(function, CHANGES[change])
    x = at(shape)
    few, forwards = counted(maps, wrong, x, Columns.TOGETHER)
    alone, _ = counted_alone(maps, wrong, x)
    assert few.comparison.wrong.any()
    assert torch.equal(few.comparison.wrong, alone.comparison.wrong)
    assert forwards < 8 * x.numel()


def test_a_pattern_makes_the_price_independent_of_the_size(maps):
    wrong = claiming(torch.sin, CHANGES["factor"])
    counts = [counted(maps, wrong, at((rows, 10)), Columns.TOGETHER)[1] for rows in (10, 40)]
    assert counts[1] - counts[0] < 60
    assert counts[1] < 400 / 2


@pytest.mark.parametrize("mix", [False, True])
def test_hard_maps_are_never_called_wrong(maps, hard, mix, monkeypatch):
    entry = repeated(hard, 0)
    if entry is None:
        pytest.skip("complex, or several outputs")
    monkeypatch.setattr(column_compression, "FEWEST_BY_DIRECTIONS", 8)
    function, x = entry
    judged = judge(maps.problem_of(mixed(function, x) if mix else function, x), Tolerance(RTOL))
    if isinstance(judged, Judged):
        assert not judged.comparison.wrong.any()
        assert not judged.comparison.imprecise.any()


@pytest.mark.parametrize("mix", [False, True])
@pytest.mark.parametrize("claimed", [0.0, 0.3, 1.0])
def test_a_kink_hides_from_no_direction(maps, claimed, mix):
    """Where x is 0 any slope between those of both sides is as good; beside it the factor is wrong."""

    def kinked(x):
        return x.abs() + 0.1 * x.sin()

    x = at((8, 8))
    x[2, 3] = x[5, 5] = 0.0

    def claim(t):
        return torch.where(x == 0, 0.9 * claimed * t + 0.1 * t.sin(), 2 * kinked(t))

    function, other = (mixed(f, x) if mix else f for f in (kinked, claim))
    judged, _ = counted(maps, claiming(function, derivative_of=other), x, Columns.TOGETHER)
    at_zero = (x == 0).reshape(-1)
    assert not judged.comparison.wrong[:, at_zero].any()
    assert judged.comparison.wrong[:, ~at_zero].any(dim=0).all()


@pytest.mark.parametrize(("faint", "covered"), [(1e-7, True), (1e-10, False)])
def test_a_difference_that_does_not_repeat_is_the_error_there(maps, faint, covered):
    """A measurement off by 1e-9: more than that would have been seen."""
    problem = maps.problem_of(torch.sin, at((4,)))
    sampler = Sampler(problem, centre_of(problem))
    measured = numerical_jacobian(sampler)
    claimed = measured.value.clone()
    measured.value[1, 1] += 1e-9
    comparison = compare(claimed, measured, Layout.of(problem.primals), problem.outputs, Tolerance(0.0))
    assert comparison.wrong.nonzero().tolist() == [[1, 1]]
    judged = remeasured(sampler, measured, comparison, 4, None, faint)
    assert not judged.wrong.any()
    assert bool(judged.covered[1, 1]) is covered
    if covered:
        assert judged.visible[1, 1] == pytest.approx(1e-9 / claimed.square().mean().sqrt().item(), rel=1.0)


def test_what_backward_claims_nothing_of_is_no_agreement(maps):
    """Rows that no claimed column reaches must stand still, too."""
    wrong = claiming(torch.sin, CHANGES["one entry zero"])
    judged, _ = counted(maps, wrong, at((8, 8)), Columns.TOGETHER)
    assert judged.comparison.wrong.nonzero().tolist() == [[32, 32]]


def test_slices_show_what_inputs_reach(maps):
    x = at((3, 5))
    problem = maps.problem_of(lambda t: t.cumsum(-1).sin(), x)
    reached = reached_outputs(
        Sampler(problem, centre_of(problem)), tangent_of(x.reshape(-1), Layout.of([x]), 3)
    )
    expected = torch.block_diag(*[torch.ones(5, 5, dtype=torch.float64).tril()] * 3)
    # Row slices tell the blocks, column slices that nothing reaches back.
    assert torch.equal(reached, expected > 0)


def test_directions_do_not_agree_with_a_wrong_entry(maps):
    x = at((6, 8))
    problem = maps.problem_of(torch.sin, x)
    sampler = Sampler(problem, centre_of(problem))
    measured = numerical_jacobian(sampler)
    claimed = 2 * measured.value
    moving = torch.ones(48, dtype=torch.bool)
    right = agreement(sampler, measured, claimed, moving)
    assert right.rows.all()
    assert torch.equal(right.entries, torch.eye(48, dtype=torch.bool))
    measured.value[7, 20] += 1e-6
    wrong = agreement(sampler, measured, claimed, moving)
    assert (~wrong.rows).nonzero().flatten().tolist() == [7]
    assert not wrong.entries[7].any()


@pytest.fixture
def x():
    return torch.linspace(-2.0, 3.1, N, dtype=torch.float64)


def test_members_of_a_group_have_no_row_in_common():
    pattern = torch.rand(30, N, generator=torch.Generator().manual_seed(1)) < 0.1
    group = columns_apart(pattern)
    for number in range(int(group.max()) + 1):
        assert pattern[:, group == number].sum(dim=1).max() <= 1


def test_a_dense_row_leaves_every_column_alone():
    assert columns_apart(torch.ones(1, N, dtype=torch.bool)) is None


@pytest.mark.parametrize("function", [torch.sin, lambda x: x.view(4, 6).softmax(-1).reshape(-1)])
def test_the_jacobian_is_the_one_that_single_columns_give(maps, x, function):
    together, few = counted(maps, function, x, Columns.TOGETHER)
    alone, many = counted_alone(maps, function, x)
    assert few < many / 2
    assert together.comparison.covered.all()
    for judged in (together, alone):
        assert not (judged.comparison.wrong | judged.comparison.imprecise).any()
    difference = (together.measured.value - alone.measured.value).abs()
    assert (difference <= 10 * (together.measured.error + alone.measured.error)).all()


@pytest.mark.parametrize("columns", [Columns.TOGETHER, Columns.IF_RIGHT])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda claimed: claimed.roll(1, dims=1),
        lambda claimed: claimed.index_fill(1, torch.tensor([5]), 0.0),
        lambda claimed: claimed * (1 + 1e-5 * (torch.arange(N) == 7)),
        lambda claimed: torch.diag(torch.full((N,), claimed.diagonal().mean().item(), dtype=torch.float64)),
    ],
    ids=["permuted", "missing", "one entry off", "mean of them"],
)
def test_what_is_wrong_is_measured_column_by_column(maps, x, spoil, columns):
    matrix = diagonal()
    claimed = spoil(matrix)
    judged, _ = counted(maps, product(matrix, claimed), x, columns)
    assert not judged.in_groups
    assert torch.equal(judged.comparison.wrong, (claimed - matrix).abs() > 1e-6)


def test_a_permutation_of_equal_entries_is_seen(maps, x):
    """Moved by equal weights, every output would move as it is claimed to."""
    matrix = torch.eye(N, dtype=torch.float64)
    judged, _ = counted(maps, product(matrix, matrix.roll(3, dims=1)), x, Columns.IF_RIGHT)
    assert judged.comparison.wrong.sum() == 2 * N


def test_entries_that_backward_passes_over_are_seen(maps, x):
    """It claims a diagonal; forward has two entries more, which no group keeps apart."""
    matrix = diagonal()
    matrix[3, 9] = matrix[20, 2] = 1e-4
    judged, _ = counted(maps, product(matrix, diagonal()), x, Columns.TOGETHER)
    assert judged.comparison.wrong.nonzero().tolist() == [[3, 9], [20, 2]]


def test_columns_that_meet_are_put_together_where_only_mistakes_matter(maps, x):
    row = torch.linspace(0.3, 2.0, N, dtype=torch.float64)[None]
    right, few = counted(maps, product(row, row), x, Columns.IF_RIGHT)
    assert right.in_groups
    assert few < 6 * N / 2
    wrong, _ = counted(maps, product(row, row.roll(1, dims=1)), x, Columns.IF_RIGHT)
    assert wrong.comparison.wrong.all()


def test_where_f_is_not_finite_nothing_is_known(maps, x):
    start = x.clone()
    start[4] = -1.0
    problem = maps.problem_of(lambda t: t.abs().log() if t[0] > 0 else t.sqrt(), start.abs() * start.sign())
    claimed = torch.zeros(N, N, dtype=torch.float64)
    centre = centre_of(problem)
    found = Compression(Sampler(problem, centre), claimed, Tolerance(RTOL)).measured(Columns.IF_RIGHT)
    lost = ~centre.isfinite()
    assert lost.any()
    assert found is None or found.measured.error[lost].isinf().all()
