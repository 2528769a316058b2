"""Slopes in float32 alone, along the gradient: what they refute, and what they leave unknown."""

import pytest
import torch

from gradverify.verifier.numerics.native_rounding import STEPS, Weighed, along_gradient

FLOAT32 = torch.finfo(torch.float32).eps


def of(function, x, gradient, room=torch.inf):
    def value(primals):
        y = function(*primals).double()
        return Weighed(y.sum(), FLOAT32 * y.abs().sum())

    return along_gradient(value, [x], [gradient], [torch.full(x.shape, room, dtype=torch.float64)])


@pytest.fixture
def x():
    return torch.linspace(-1.5, 2.0, 40)


def test_the_right_gradient_agrees_to_many_digits(x):
    found = of(torch.sin, x, torch.cos(x))
    assert found.is_right
    assert abs(found.claimed / found.measured - 1) < 1e-5
    assert found.hides < 2e-3


@pytest.mark.parametrize("factor", [1.01, 0.5, -1.0])
def test_a_factor_is_wrong(x, factor):
    assert of(torch.sin, x, factor * torch.cos(x)).is_wrong


def test_what_is_not_finite_is_unknown(x):
    found = of(lambda t: torch.sin(t) * torch.nan, x, torch.cos(x))
    assert not found.is_known
    assert not found.is_wrong
    assert not found.is_right


def test_where_nothing_moves_nothing_is_said(x):
    assert of(torch.sin, x, torch.zeros_like(x)) is None
    assert of(torch.sin, x, torch.cos(x), room=0.0) is None
    nothing = along_gradient(lambda primals: None, [x], [torch.cos(x)], [torch.ones_like(x).double()])
    assert nothing is None


def test_the_rounding_of_a_large_output_is_part_of_the_error(x):
    found = of(lambda t: torch.sin(t) + 1e6, x, 1.3 * torch.cos(x))
    assert not found.is_known
    assert not found.is_wrong


def test_a_zero_that_is_known_refutes_a_claim(x):
    assert of(torch.zeros_like, x, torch.ones_like(x)).is_wrong


def test_a_kink_at_the_values_refutes_nothing():
    at_kink = torch.zeros(5)
    found = of(torch.relu, at_kink, torch.ones(5))
    assert not found.smooth
    assert not found.is_wrong


def test_kinks_near_by_are_left_behind_by_shorter_steps():
    x = torch.linspace(-1, 1, 40) + 1e-3
    assert of(torch.relu, x, (x > 0).float()).is_right
    assert of(torch.relu, x, 1.01 * (x > 0).float()).is_wrong


def test_steps_stay_where_values_are_valid():
    x = torch.tensor([0.05, 1.0, 20.0])
    seen = []

    def value(primals):
        seen.append(primals[0])
        y = primals[0].log().double()
        return Weighed(y.sum(), FLOAT32 * y.abs().sum())

    room = x.double()  # to zero
    assert along_gradient(value, [x], [1 / x], [room]).is_right
    assert min(t.min().item() for t in seen) > 0


def test_steps_are_no_denormal_numbers():
    zeros, moved = torch.zeros(4), []

    def value(primals):
        moved.append(primals[0].abs().max().item())
        y = torch.nn.functional.softplus(primals[0]).double()
        return Weighed(y.sum(), FLOAT32 * y.abs().sum())

    found = along_gradient(value, [zeros], [torch.full((4,), 0.5)], [torch.full((4,), torch.inf).double()])
    assert not found.is_wrong
    assert max(moved) > STEPS[-1] * 1e-4
