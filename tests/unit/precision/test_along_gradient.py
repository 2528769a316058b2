"""Slopes in float32 alone, along the gradient."""

import pytest
import torch

from gradverify.verifier.numerics.precision.along_gradient import along_gradient


def of(function, x, gradient):
    def value(primals):
        return function(*primals).double().sum()

    return along_gradient(value, [x], [gradient])


@pytest.fixture
def x():
    return torch.linspace(-1.5, 2.0, 40)


def test_the_right_gradient_agrees_to_many_digits(x):
    found = of(torch.sin, x, torch.cos(x))
    assert not found.is_wrong
    assert abs(found.claimed / found.measured - 1) < 1e-5
    assert found.hides < 2e-3


@pytest.mark.parametrize("factor", [1.01, 0.5, -1.0])
def test_a_factor_is_wrong(x, factor):
    assert of(torch.sin, x, factor * torch.cos(x)).is_wrong


def test_nan_is_no_agreement(x):
    found = of(lambda t: torch.sin(t) * torch.nan, x, torch.cos(x))
    assert found.is_wrong


def test_where_nothing_moves_nothing_is_said(x):
    assert of(torch.sin, x, torch.zeros_like(x)) is None
    assert along_gradient(lambda primals: None, [x], [torch.cos(x)]) is None
