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


@pytest.mark.parametrize("function", [lambda x: x.detach().floor(), lambda x: x.sum().detach() * 0])
def test_outputs_without_a_graph_that_stay_what_they_are_take_few_calls(function):
    call = counted(function)
    assert gradverify.gradcheck(call, inputs())
    assert call.times < 8  # torch's own check calls it twice for each entry


def test_gradients_that_are_zero_take_few_calls():
    call = counted(torch.floor)
    assert gradverify.gradgradcheck(call, inputs())
    assert call.times < 8


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
