"""The rules of judgement, each on the smallest Function that meets it."""

import pytest
import torch

from gradverify.verifier.witnesses.answers import Imprecise, NotJudged, Reason, Right, Unknown, Wrong

CALLS_OF_A_PROOF = 8
"""Five forwards, two backwards, one forward for derived."""


def answer(made, forward, backward, **how):
    found, asked = made.judged(made.function_of(forward, backward), how.pop("x", made.x), **how)
    (one,) = found.answers.values()
    return one, asked


def test_a_right_one_is_proved_in_few_calls(made):
    found, asked = answer(made, torch.sin, lambda x, g: g * x.cos())
    assert isinstance(found, Right)
    assert found.visible < 1e-9
    assert asked.trust.confirmed
    assert asked.counter.forward + asked.counter.backward <= CALLS_OF_A_PROOF


def test_agreement_with_a_confirmed_derived_takes_three_calls(made):
    found, asked = answer(made, torch.sin, lambda x, g: g * x.cos(), prove=False, confirmed=True)
    assert isinstance(found, Right)
    assert asked.counter.forward + asked.counter.backward <= 3


@pytest.mark.parametrize("off", [2.0, 1.01, 1 + 1e-4, 1 + 1e-6, -1.0])
def test_a_factor_is_wrong_by_both_witnesses(made, off):
    found, _ = answer(made, torch.sin, lambda x, g: off * g * x.cos())
    assert isinstance(found, Wrong)
    assert found.both
    worst = found.entries[0]
    assert abs(worst.claimed / worst.expected - off) < 1e-8


def test_a_small_factor_is_lost_digits(made):
    found, _ = answer(made, torch.sin, lambda x, g: (1 + 3e-9) * g * x.cos())
    assert isinstance(found, Imprecise)
    assert 2e-9 < found.share < 4e-9


def test_float32_in_backward_alone_is_lost_digits_of_that_kind(made):
    found, _ = answer(made, torch.sin, lambda x, g: (g.float() * x.float().cos()).double())
    assert isinstance(found, Imprecise | Wrong)
    assert isinstance(found, Wrong) or found.short


def test_what_forward_hides_and_backward_leaves_out_is_wrong_by_values(made):
    found, _ = answer(made, lambda x: x * x.sum().item(), lambda x, g: g * x.sum())
    assert isinstance(found, Wrong)
    assert not found.both


def test_what_forward_hides_and_backward_has_is_right(made):
    found, asked = answer(
        made, lambda x: x * x.sum().item(), lambda x, g: g * x.sum() + (g * x).sum().expand_as(x)
    )
    assert isinstance(found, Right)
    assert asked.trust.refuted


def test_a_zero_is_missing(made):
    found, _ = answer(made, torch.sin, lambda x, g: torch.zeros_like(g))
    assert isinstance(found, Wrong)
    assert found.missing


def test_a_constant_needs_a_gradient_of_exactly_zero(made):
    right, _ = answer(made, torch.ones_like, lambda x, g: torch.zeros_like(g))
    wrong, _ = answer(made, torch.ones_like, lambda x, g: g)
    assert isinstance(right, Right)
    assert isinstance(wrong, Wrong)
    assert wrong.is_flat


SIDES = {"left": (-1.0, Right), "right": (1.0, Right), "middle": (0.0, Right), "half": (0.5, Right)} | {
    "beyond": (1.15, Wrong),
    "twice": (2.0, Wrong),
}


@pytest.mark.parametrize("name", SIDES)
def test_at_a_kink_the_hull_decides(made, name):
    side, expected = SIDES[name]
    x = torch.tensor([0.0, 1.3], dtype=torch.float64)
    found, _ = answer(made, torch.abs, lambda x, g: g * torch.where(x == 0, side, x.sign()), x=x)
    assert isinstance(found, expected)


TIES = {
    "all to the first": (1.0, 0.0, True),
    "half each": (0.5, 0.5, True),
    "a third and two": (1 / 3, 2 / 3, True),
    "all to both": (1.0, 1.0, False),
    "nothing": (0.0, 0.0, False),
    "minus": (2.0, -1.0, False),
}


@pytest.mark.parametrize("name", TIES)
def test_a_tie_between_inputs_shares_one_gradient(made, name):
    of_a, of_b, is_right = TIES[name]

    class Larger(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return torch.maximum(a, b)

        @staticmethod
        def backward(ctx, g):
            a, b = ctx.saved_tensors
            tie = a == b
            return g * torch.where(tie, of_a, (a > b) * 1.0), g * torch.where(tie, of_b, (b > a) * 1.0)

    a = torch.tensor([0.5, 1.0, -2.0], dtype=torch.float64)
    b = torch.tensor([0.5, 0.0, 1.0], dtype=torch.float64)
    found, _ = made.judged(Larger.apply, a, b)
    assert all(isinstance(one, Right) for one in found.answers.values()) == is_right
    assert any(isinstance(one, Wrong) for one in found.answers.values()) != is_right


def test_a_middle_of_equal_values_may_be_any_of_them(made):
    def backward(x, g):
        first = torch.zeros_like(x)
        first[int((x == x.median()).int().argmax())] = 1.0
        return g * first

    x = torch.tensor([1.0, 1.0, 1.0, 5.0, -2.0], dtype=torch.float64)
    found, _ = answer(made, lambda x: x.median(), backward, x=x)
    assert isinstance(found, Right)


def test_nan_is_wrong_where_there_is_a_slope(made):
    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    found, _ = answer(made, torch.sin, lambda x, g: torch.where(x == 1, torch.nan, g * x.cos()), x=x)
    assert isinstance(found, Wrong)
    assert found.nonfinite


def test_the_end_of_a_loop_explains_a_small_difference(made):
    def backward(x, g):
        return g * x.cos() * (1 + 1e-5)

    open_, _ = answer(made, torch.sin, backward, loops=True)
    wrong, _ = answer(made, torch.sin, lambda x, g: g * x.cos() * 1.1, loops=True)
    assert isinstance(open_, Unknown)
    assert open_.reason is Reason.LOOP
    assert isinstance(wrong, Wrong)


def test_a_bisection_is_judged_by_values(made):
    """Torch's derivative of its comparisons is none; the implicit one is right."""

    def root(x):
        low, high = torch.zeros_like(x), x.abs() + 1
        for _ in range(60):
            middle = (low + high) / 2
            low, high = torch.where(middle**3 < x, middle, low), torch.where(middle**3 < x, high, middle)
        return (low + high) / 2

    x = torch.tensor([0.7, 1.9, 3.0], dtype=torch.float64)
    found, asked = answer(made, root, lambda x, g: g / (3 * root(x) ** 2), x=x)
    assert isinstance(found, Right)
    assert asked.trust.refuted


def test_rounding_of_backward_at_undeclared_values_is_marked(made):
    """Exp(x) - 1 over x, near 0: the formula is right, and loses its digits."""
    x = torch.tensor([3e-7, -2e-7, 0.5], dtype=torch.float64)
    found, _ = answer(
        made,
        lambda x: torch.expm1(x) / x,
        lambda x, g: g * (x.exp() * (x - 1) + 1) / x**2,
        x=x,
        prove=False,
        declared=False,
        confirmed=True,
    )
    assert isinstance(found, Wrong | NotJudged | Right)
    assert not isinstance(found, Wrong) or found.rounded


def test_a_spent_budget_is_said(made):
    found, _ = answer(
        made,
        lambda x: torch.from_numpy((x.detach().numpy().astype("float32")) ** 3).double(),
        lambda x, g: g * 3 * x * x,
        budget=0,
    )
    assert isinstance(found, Unknown)
    assert found.reason is Reason.BUDGET


def test_a_backward_that_is_not_linear_agrees_at_one_and_not_at_others(made):
    found, _ = answer(made, lambda x: (x * x).sum(), lambda x, g: 2 * x)
    assert isinstance(found, Wrong)
