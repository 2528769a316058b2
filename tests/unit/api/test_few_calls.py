"""The drop-in where little is to be asked: what it does not call, and does not load."""

import subprocess
import sys

import pytest
import torch

import gradverify


def counted(function):
    """The function, and how often it was called."""

    def call(x):
        call.times += 1
        return function(x)

    call.times = 0
    return call


def inputs(rows=400):
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(rows, generator=generator, dtype=torch.float64).requires_grad_(),)


@pytest.mark.parametrize("function", [lambda x: x.detach().exp(), lambda x: x.detach().clamp(min=0.0)])
def test_outputs_without_a_graph_that_move_are_wrong(function):
    assert not gradverify.gradcheck(function, inputs(20), raise_exception=False)


def test_an_output_that_moves_to_one_side_alone_is_not_constant():
    x = torch.zeros(3, dtype=torch.float64).requires_grad_()
    assert not gradverify.gradcheck(lambda x: x.detach().clamp(min=0.0), (x,), raise_exception=False)


def test_zeros_that_have_no_memory_load_no_compiler():
    """The second derivative of `abs` is such zeros; a product of them imports torch's compiler."""
    program = """
import sys, torch, gradverify
x = torch.tensor([0.5, -2.0], dtype=torch.float64).requires_grad_()
assert gradverify.gradgradcheck(torch.abs, (x,))
print(sorted({"torch._dynamo", "sympy"} & set(sys.modules)))
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_inputs_that_the_second_derivative_does_not_know_are_moved_together():
    calls = []

    def total(*inputs):
        calls.append(inputs)
        return sum(inputs)

    assert gradverify.gradgradcheck(total, tuple(inputs(3)[0].detach().requires_grad_() for _ in range(4)))
    assert len(calls) < 12


class MissesOneOfThree(torch.autograd.Function):
    """x + y + z²/1000, whose backward's own backward takes z for a constant."""

    @staticmethod
    def forward(ctx, x, y, z):
        ctx.save_for_backward(x, y, z)
        return x + y + 1e-3 * z**2

    @staticmethod
    def backward(ctx, u):
        _, _, z = ctx.saved_tensors
        return u * 1, u * 1, u * (2e-3 * z.detach())


def test_one_that_is_taken_for_a_constant_among_those_is_seen():
    given = tuple(torch.tensor([1.5, -0.5], dtype=torch.float64).requires_grad_() for _ in range(3))
    assert gradverify.gradcheck(MissesOneOfThree.apply, given)
    assert not gradverify.gradgradcheck(MissesOneOfThree.apply, given, raise_exception=False)


class Slope(torch.autograd.Function):
    """3 x² g, whose derivative by x is off by a tenth."""

    @staticmethod
    def forward(ctx, x, g):
        ctx.save_for_backward(x, g)
        return 3 * x * x * g

    @staticmethod
    def backward(ctx, h):
        x, g = ctx.saved_tensors
        return 6.6 * x * g * h, 3 * x * x * h


class Cube(torch.autograd.Function):
    """x³, right at first order."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        return Slope.apply(*ctx.saved_tensors, g)


@pytest.mark.parametrize("added", [None, Cube], ids=["right", "wrong"])
@pytest.mark.parametrize("seed", range(3))
def test_gradients_that_normalising_two_entries_makes_all_but_zero(seed, added):
    """What is left of them is 1e-9 and rounding; a mistake beside it is found as ever."""
    generator = torch.Generator().manual_seed(seed)
    x = (torch.randn(1, 2, generator=generator, dtype=torch.float64) * 4).requires_grad_()
    normalised = counted(lambda x: torch.nn.functional.layer_norm(x, (2,)))
    if added is None:
        assert gradverify.gradgradcheck(normalised, (x,))
    else:
        wrong = lambda x: normalised(x) + 1e-2 * added.apply(x)  # noqa: E731 - the sum of both
        assert not gradverify.gradgradcheck(wrong, (x,), raise_exception=False)
