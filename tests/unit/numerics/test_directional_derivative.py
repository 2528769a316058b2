"""A backward that is far off along a direction is seen without a Jacobian, and no right one is."""

import pytest
import torch
from torch.autograd import Function

from gradverify.verifier.numerics.directional_derivative import is_far_off
from gradverify.verifier.numerics.probes import tangent_of
from gradverify.verifier.numerics.problem import Layout

KEYS = range(5)


def is_off(problem, key):
    inputs = Layout.of(problem.primals)
    return is_far_off(problem, tangent_of(inputs.flatten(problem.primals), inputs, key), key)


def scaled(function, factor):
    """A map whose backward is its own times a factor."""

    class Scaled(Function):
        @staticmethod
        def forward(ctx, *tensors):
            ctx.save_for_backward(*tensors)
            return function(*tensors)

        @staticmethod
        def backward(ctx, g):
            with torch.enable_grad():
                leaves = [t.detach().requires_grad_() for t in ctx.saved_tensors]
                gradients = torch.autograd.grad(function(*leaves), leaves, g)
            return tuple(factor * one for one in gradients)

    return Scaled.apply


def test_a_right_map_is_far_off_along_no_direction(maps, right, seeds):
    for seed in seeds:
        function, tensors = maps.drawn(right, seed)
        problem = maps.problem_of(function, *tensors)
        assert not any(is_off(problem, key) for key in KEYS)


def test_no_map_is_far_off_at_a_kink(maps, kinked):
    function, values = kinked
    x = torch.tensor(values, dtype=torch.float64)
    assert not any(is_off(maps.problem_of(function, x), key) for key in KEYS)


def test_kinks_of_many_rows_do_not_cancel(maps):
    problem = maps.problem_of(torch.relu, torch.zeros(100, dtype=torch.float64))
    assert not any(is_off(problem, key) for key in KEYS)


def test_no_map_is_far_off_at_a_jump(maps, jumping):
    function, values = jumping
    x = torch.tensor(values, dtype=torch.float64)
    assert not any(is_off(maps.problem_of(function, x), key) for key in KEYS)


@pytest.mark.parametrize("factor", [2.0, -1.0, 0.0, 1.1])
def test_a_factor_is_far_off(maps, factor):
    """Along most directions: along some the terms of a small one all but cancel."""
    x = torch.linspace(-2.0, 2.0, 40, dtype=torch.float64)
    problem = maps.problem_of(scaled(lambda x: torch.tanh(x) * x, factor), x)
    assert sum(is_off(problem, key) for key in KEYS) > len(KEYS) / 2


def test_a_gradient_of_what_does_not_move_is_far_off(maps):
    class Still(Function):
        @staticmethod
        def forward(ctx, x):
            return torch.ones_like(x)

        @staticmethod
        def backward(ctx, g):
            return g

    problem = maps.problem_of(Still.apply, torch.linspace(-2.0, 2.0, 40, dtype=torch.float64))
    assert all(is_off(problem, key) for key in KEYS)


def test_what_is_off_in_the_rounding_of_float32_alone_is_not_far_off(maps):
    x = torch.linspace(-2.0, 2.0, 40, dtype=torch.float64)
    problem = maps.problem_of(scaled(lambda x: torch.tanh(x.float()).double(), 1.0), x)
    assert not any(is_off(problem, key) for key in KEYS)


def test_where_forward_or_backward_refuses_nothing_is_said(maps):
    class Refusing(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            raise ValueError("not so")

    x = torch.ones(3, dtype=torch.float64)
    assert not is_off(maps.problem_of(Refusing.apply, x), 0)
