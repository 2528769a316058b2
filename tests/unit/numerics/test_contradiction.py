"""Two directions that contradict a backward: never a right one, always one that is off as a whole."""

import pytest
import torch
from torch.autograd import Function

from gradverify.verifier.numerics.contradiction import LEAST, contradiction


class Faulty(Function):
    """Identity whose backward applies a fault to the gradient."""

    @staticmethod
    def forward(ctx, x, fault):
        ctx.fault = fault
        return x.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return ctx.fault(grad_output), None


FAULTS = {
    "twice": lambda g: 2 * g,
    "negative": lambda g: -g,
    "a twentieth": lambda g: 1.05 * g,
    "flipped": lambda g: g.flip(-1),
    "none": torch.zeros_like,
}


def test_a_right_map_is_never_contradicted(maps, right, seeds):
    for seed in seeds:
        function, tensors = maps.drawn(right, seed)
        assert contradiction(maps.problem_of(function, *tensors)) is None


def test_nor_is_one_at_a_kink_or_a_jump(maps, kinked):
    function, values = kinked
    x = torch.tensor(values, dtype=torch.float64)
    assert contradiction(maps.problem_of(function, x)) is None


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_gradient_that_is_off_as_a_whole_is_contradicted(maps, seeds, fault):
    for seed in seeds:
        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        problem = maps.problem_of(lambda t: Faulty.apply(t, fault).sin().cumsum(-1), x)
        size = contradiction(problem)
        assert size is not None
        assert size > LEAST
        assert problem.counter.forward + problem.counter.backward <= 28


def test_nan_is_no_contradiction(maps):
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    spoiled = maps.problem_of(lambda t: Faulty.apply(t, lambda g: g * torch.nan), x)
    assert contradiction(spoiled) is None


def test_a_direction_of_one_input_shows_that_one_alone(maps):
    class Product(Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, grad_output):
            x, y = ctx.saved_tensors
            return grad_output * y, grad_output * 2 * x

    x, y = torch.tensor([0.7, -1.2]).double(), torch.tensor([1.9, 0.4]).double()
    problem = maps.problem_of(Product.apply, x, y)
    assert [contradiction(problem, among=k) is not None for k in (None, 0, 1)] == [True, False, True]
