"""What the round-off of a target's own operations explains is not judged, and nothing else is excused."""

import math

import numpy as np
import pytest
import torch
from torch.autograd import Function

from gradverify.verifier.guard import Returned
from gradverify.verifier.numerics import round_off
from gradverify.verifier.numerics.large import judge_any_size
from gradverify.verifier.numerics.tolerance import Tolerance, distance
from gradverify.verifier.numerics.verdict import Judged

SQRT2 = math.sqrt(2)


def gelu(x):
    return 0.5 * x * (1 + torch.erf(x / SQRT2))


def gelu_slope(x):
    """The true derivative, with erfc for the digits that `1 + erf` loses."""
    return 0.5 * torch.erfc(-x / SQRT2) + x * torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def elementwise(forward, slope):
    """A Function of one tensor with a given derivative."""

    class Elementwise(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * slope(x)

    return Elementwise.apply


def comparison_of(maps, function, *values):
    return maps.judged(function, torch.tensor(values, dtype=torch.float64)).comparison


def test_where_one_and_erf_cancel_nothing_is_judged(maps):
    found = comparison_of(maps, elementwise(gelu, gelu_slope), -10.0, -9.5)
    assert not found.wrong.any()
    assert found.not_judged.tolist() == [[True, False], [False, True]]
    assert not found.covered.diagonal().any()


def test_none_of_many_saturated_entries_is_accused(maps):
    """An error of one rounding next to 1 is lost by rounding in three of eight draws."""
    x = torch.linspace(-12.0, -9.2, 60, dtype=torch.float64)
    found = [maps.judged(elementwise(gelu, gelu_slope), x - k / 1000).comparison for k in range(10)]
    assert not any(one.wrong.any() for one in found)


def test_rows_that_are_too_many_to_be_asked_stay_open_and_the_worst_is_asked_first(maps, monkeypatch):
    """Of 30 saturated rows four are asked after the first; the last one is wrong by more than the others."""
    asked = []

    def explained_by(_, rows, *__):
        asked.append(rows)
        return torch.tensor([0.0 if row == 29 else 1.0 for row in rows])[:, None]

    monkeypatch.setattr(round_off, "MOST_ROWS", 4)
    monkeypatch.setattr(round_off, "_by_forward", lambda *_: torch.zeros(30, 30, dtype=torch.bool))
    monkeypatch.setattr(round_off, "_row_round_off", explained_by)
    x = torch.linspace(-12.0, -9.2, 30, dtype=torch.float64)

    def slope(x):
        return gelu_slope(x) + torch.where(x > -9.25, 1e-10, 0.0)

    found = maps.judged(elementwise(gelu, slope), x).comparison
    first, others = asked
    assert others[0] == 29 and len(others) == 4
    assert found.wrong.any(dim=1).nonzero().flatten().tolist() == [29]
    judged = found.covered | found.wrong | found.not_judged
    left_open = set((~judged).diagonal().nonzero().flatten().tolist())
    assert left_open
    assert left_open.isdisjoint({*first, *others})


def test_none_is_where_the_jacobian_is_too_large_to_build(maps):
    x = torch.linspace(-12.0, -9.2, 30, dtype=torch.float64)
    problem = maps.problem_of(elementwise(gelu, gelu_slope), x)
    found = judge_any_size(problem, Tolerance(maps.RTOL), largest=1)
    assert not (isinstance(found, Judged) and found.comparison.wrong.any())


def test_at_ordinary_values_everything_is_judged(maps):
    found = comparison_of(maps, elementwise(gelu, gelu_slope), -1.3, -0.5, 0.7, 1.9)
    assert found.covered.all()
    assert not found.not_judged.any()


@pytest.mark.parametrize("above", [1e-15, 1e-14])
def test_what_has_no_digits_left_is_not_zero_where_forward_is_constant(maps, above):
    """Roundings make 1 / sqrt(x² - 1) anything but small, at the end of a clamp: NaN, too."""

    def inside(x):
        return x.clamp(min=1 + above)

    def arcosh(x):
        return (inside(x) + (inside(x) ** 2 - 1).sqrt()).log()

    def slope(x):
        return 1 / (inside(x) ** 2 - 1).sqrt()

    xs = torch.linspace(-2.0, 0.5, 12).tolist()
    assert comparison_of(maps, elementwise(arcosh, slope), *xs).wrong.any()


@pytest.mark.parametrize("cut", [6.0, 3.0])
def test_a_gradient_that_is_cut_to_zero_where_it_is_one_is_wrong(maps, cut):
    def slope(x):
        return torch.where(x > cut, 0.0, gelu_slope(x))

    assert comparison_of(maps, elementwise(gelu, slope), -0.5, 7.0).wrong.tolist()[1] == [False, True]


@pytest.mark.parametrize("size", [1e-20, 1e-100, 1.0])
def test_a_wrong_factor_is_wrong_however_small_the_function(maps, size):
    function = elementwise(lambda x: size * x.sin(), lambda x: 2 * size * x.cos())
    assert comparison_of(maps, function, 0.3, 1.1).wrong.diagonal().all()


def test_a_small_output_beside_a_large_one_is_judged_by_its_own_size(maps):
    function = elementwise(torch.exp, lambda x: torch.where(x < -6, 2.0, 1.0) * x.exp())
    found = comparison_of(maps, function, -20.0, 1.0, 25.0)
    assert found.wrong.tolist() == [[True, False, False], [False] * 3, [False] * 3]


def by_numpy(x):
    """The same in NumPy, whose operations nothing can be put into."""
    from_numpy = 0.5 * x.detach().numpy() * (1 + np.tanh(0.8 * x.detach().numpy()))
    return torch.from_numpy(from_numpy)


def test_what_no_error_can_be_put_into_is_given_the_rounding_of_one(maps):
    def slope(x):
        y = torch.tanh(0.8 * x)
        return 0.5 * (1 + y) + 0.4 * x * (1 - y * y) + torch.where(x < -20, 1e-17, 0.0)

    found = comparison_of(maps, elementwise(by_numpy, slope), -30.0)
    assert not found.wrong.any()
    assert found.not_judged.all()


def test_in_the_second_order_of_a_saturated_softmax_nothing_is_wrong(maps):
    class Softmax(Function):
        @staticmethod
        def forward(ctx, x):
            y = torch.softmax(x, -1)
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            return y * (g - (g * y).sum(-1, keepdim=True))

    x = torch.tensor([[-84.0, 30.0, 2.0], [60.0, -61.0, 59.0]], dtype=torch.float64)
    first, second = maps.judged_twice(Softmax.apply, x)
    for found in (first, second):
        assert not (found.comparison.wrong | found.comparison.imprecise).any()


@pytest.mark.parametrize(
    ("at", "factor", "wrong"), [(-1e9, 1.0, False), (-3.0, 1.0, False), (-3.0, 2.0, True)]
)
def test_an_exponential_of_numbers_that_cancel_is_judged_where_digits_are_left(maps, at, factor, wrong):
    """The ratio of Mills: both exponents are 5e17 at -1e9, and a rounding of them is 64."""

    def slope(a):
        return factor * torch.exp(-0.5 * a * a - torch.special.log_ndtr(a)) / math.sqrt(2 * math.pi)

    found = comparison_of(maps, elementwise(torch.special.log_ndtr, slope), at)
    assert found.wrong.item() is wrong
    assert found.not_judged.item() is (at < -1e3)


def test_where_an_output_is_infinite_nothing_of_its_grad_output_is_judged(maps):
    """0 · inf is NaN: its slope spoils the second derivative of all others by it."""

    class LogGamma(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return torch.lgamma(x + 1)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * torch.digamma(x + 1)

    _, second = maps.judged_twice(LogGamma.apply, torch.tensor([-1.0, 0.3], dtype=torch.float64))
    assert not second.comparison.nonfinite.any()


def langevin_slope(x, of):
    return 1 / x**2 - 1 / of.sinh(x) ** 2


@pytest.mark.parametrize("at", [1e-6, 1.3e-6, 2.7e-6, 3e-7])
@pytest.mark.parametrize("seen", [True, False], ids=["torch", "numpy"])
def test_what_cancels_in_backward_is_not_judged_be_its_operations_seen_or_not(maps, at, seen):
    def slope(x):
        return langevin_slope(x, torch) if seen else torch.from_numpy(langevin_slope(x.numpy(), np))

    found = comparison_of(maps, elementwise(lambda x: 1 / x.tanh() - 1 / x, slope), at, 1.1)
    assert not found.wrong.any()
    assert found.covered[1, 1]


@pytest.mark.parametrize("cut", [torch.eq, torch.gt, torch.ge, torch.lt], ids=["eq", "gt", "ge", "lt"])
def test_a_step_of_backward_at_a_value_is_no_rounding(maps, cut):
    """At 1 it gives 0 or twice the slope; a little beside x it may be right."""

    def slope(x):
        return x.cos() * (torch.where(cut(x, 1.0), 2.0, 1.0) - torch.where(cut(x, 1.0), 0.0, 1.0))

    assert comparison_of(maps, elementwise(torch.sin, slope), 0.5, 1.0).wrong[1, 1]


NO_TRACE = (78, 106, 116)
"""Places of 120 at which the errors of the first run leave no trace of themselves beside 1."""


@pytest.mark.parametrize("place", NO_TRACE)
@pytest.mark.parametrize("off", [0.0, 1e-9], ids=["right", "wrong"])
def test_a_run_whose_errors_leave_no_trace_beside_one_refutes_nothing(maps, place, off):
    """`1 - tanh(30)` is 0 in all floats around, beside values of 4e-44: its slope is -4e-26."""
    alone = torch.arange(120) == place
    x = torch.where(alone, 30.0, 100.0).double()

    def forward(x):
        return torch.where(alone, 1 - torch.tanh(x), torch.exp(-x))

    def slope(x):
        return torch.where(alone, off - 1 / torch.cosh(x) ** 2, -torch.exp(-x))

    found = maps.judged(elementwise(forward, slope), x).comparison
    assert found.wrong.any().item() is (off > 0)
    assert found.not_judged[place, place].item() is (off == 0)


class ColdSoftmax(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x / 1e-3, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(-1, keepdim=True)) / 1e-3


@pytest.mark.parametrize("seed", range(24, 48))
def test_in_the_second_order_of_a_cold_softmax_nothing_is_wrong(maps, seed):
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for found in maps.judged_twice(ColdSoftmax.apply, x, seed=seed):
        assert not (found.comparison.wrong | found.comparison.imprecise).any()


class ColdSoftmaxOfSomethingElse(Function):
    """Its second derivative by the first entry of each row is off by 1e-3."""

    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x / 1e-3, -1)
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return y * (g - (g * y).sum(-1, keepdim=True)) / 1e-3 + 1e-3 * (x[:, :1] - x.detach()[:, :1])


def test_a_second_derivative_of_ordinary_size_where_it_is_nothing_is_wrong(maps):
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(29), dtype=torch.float64)
    _, second = maps.judged_twice(ColdSoftmaxOfSomethingElse.apply, x)
    assert second.comparison.wrong.any()


def test_denormal_numbers_that_differ_by_their_rounding_are_no_distance_apart():
    """4.757e-318 has three digits, and four roundings of it are a share of 1e-6."""
    one = torch.tensor([4.757e-318, 1e-280, math.nan, math.inf], dtype=torch.float64)
    other = one + torch.tensor([2e-323, 1e-290, 0.0, 0.0], dtype=torch.float64)
    assert distance(one, other).tolist()[:2] == [0.0, pytest.approx(1e-290, rel=1e-5)]
    assert distance(one, other)[2:].isnan().all()


@pytest.mark.parametrize(("seed", "seen"), [(17, False), (36, False), (19, True), (20, True)])
def test_no_error_is_seen_below_a_rounding_of_what_is_there(maps, seed, seen):
    """Where all is saturated, a slope of 1e-300 is known to 1e-302, and the one of 1e-87 beside it is not."""
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = maps.judged(ColdSoftmax.apply, x).comparison
    assert found.visible[found.covered].max() > 0
    assert (found.smallest_visible is not None) is seen
    assert not seen or found.smallest_visible > 1e-10


def test_a_result_beside_a_pole_is_rounding_though_random_errors_lead_further_from_it():
    """0.1 + 0.2 - 0.3 is one rounding; where each operation errs by 16, its inverse is far smaller."""
    a, b, c = (torch.tensor([v], dtype=torch.float64) for v in (0.1, 0.2, 0.3))
    inverse = 1e-17 / ((a + b) - c)
    spread = round_off._spread_of(lambda: Returned(1e-17 / ((a + b) - c)))
    assert (spread.values > 0.5 * inverse.abs()).all()


def test_what_all_runs_agree_on_is_state_and_no_rounding():
    first = iter([1.0])
    spread = round_off._spread_of(
        lambda: Returned(torch.tensor([next(first, 2.0)], dtype=torch.float64) * 1.0)
    )
    assert (spread.values < 1e-12).all()


def test_a_first_run_whose_errors_are_rounded_away_refutes_nothing():
    moved = iter([0.0, 1e-23, 3e-15, -2e-15, 1e-15])

    def run():
        return Returned(1e-8 + torch.tensor([next(moved)], dtype=torch.float64))

    spread = round_off._spread_of(run, torch.tensor([1.5e-19], dtype=torch.float64))
    assert spread.values.item() > 1e-15


@pytest.mark.parametrize("at", [-3.01e-6, 2.4e-6, 4.87e-6])
@pytest.mark.parametrize(("claim", "wrong"), [(0.0, False), (1e9, True)])
def test_the_slope_of_a_piece_between_two_roundings_refutes_nothing(maps, at, claim, wrong):
    def series(x):
        return (1 - torch.cos(x)) / (x * x)

    comparison = comparison_of(maps, elementwise(series, lambda x: claim - x / 12), at, 0.3 * at)
    assert comparison.wrong.any().item() is wrong
