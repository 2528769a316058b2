"""Columns that are measured together: fewer forwards for the same verdict, and no mistake that hides."""

from unittest import mock

import pytest
import torch
from torch.autograd import Function

from gradverify.verifier.numerics import verdict
from gradverify.verifier.numerics.compressed import columns_apart, measured_together
from gradverify.verifier.numerics.tolerance import Tolerance
from gradverify.verifier.numerics.verdict import Columns, Judged, centre_of, judge

RTOL = 1e-7
N = 24


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


def counted_alone(maps, function, x):
    """The same by single columns."""
    with mock.patch.object(verdict, "_by_few_forwards", return_value=None):
        return counted(maps, function, x, Columns.TOGETHER)


def counted(maps, function, x, columns):
    problem = maps.problem_of(function, x)
    judged = judge(problem, Tolerance(RTOL), columns=columns)
    assert isinstance(judged, Judged)
    return judged, problem.counter.forward


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
    slopes = measured_together(problem, centre_of(problem), claimed, RTOL)
    lost = ~centre_of(problem).isfinite()
    assert lost.any()
    assert slopes.measured.error[lost].isinf().all()
