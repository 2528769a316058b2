"""What torch derives of forward's operations, and what hides from it."""

import pytest
import torch
from torch.autograd import Function

from gradverify.verifier.witnesses.derived import Derived, NoDerived


class Nothing(Function):
    """An inner Function whose backward is wrong: only its forward counts."""

    @staticmethod
    def forward(ctx, x):
        return x * x

    @staticmethod
    def backward(ctx, g):
        return torch.zeros_like(g)


def no_grad(x):
    with torch.no_grad():
        n = x.square().sum()
    return x * n


WAYS = {
    "plain": (lambda x: x * x.exp(), "eager", False),
    "inner Function": (lambda x: Nothing.apply(x) + x, "eager", False),
    "detach": (lambda x: x * x.detach(), "transparent", False),
    "data": (lambda x: x * x.data, "transparent", False),
    "no_grad": (no_grad, "transparent", False),
    "item": (lambda x: x * x.sum().item(), "transparent", True),
    "float": (lambda x: x * float(x.sum()), "transparent", True),
    "tolist": (lambda x: x * torch.tensor(x.tolist()), "transparent", True),
    "numpy": (lambda x: x * torch.from_numpy(x.detach().numpy() ** 2), "eager", True),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_form_and_what_hides_in_it(made, way):
    forward, form, hides = WAYS[way]
    function = made.function_of(forward, lambda x, g: g)
    found = made.derived_of(function, made.x)
    assert isinstance(found, Derived)
    assert (found.form, found.hides) == (form, hides)


def test_there_is_none_of_numpy_alone(made):
    function = made.function_of(lambda x: torch.from_numpy(x.detach().numpy() ** 2), lambda x, g: g)
    assert isinstance(made.derived_of(function, made.x), NoDerived)


def test_no_call_of_backward_is_counted(made):
    function = made.function_of(torch.sin, lambda x, g: g)
    found = made.derived_of(function, made.x)
    assert found.problem.counter.backward == 1
    graph = found.problem.graph(found.problem.primals).value
    (gradient,) = found.problem.back(graph, [torch.ones_like(made.x)]).value
    assert torch.allclose(gradient, made.x.cos())


def test_aliases_of_apply_are_opened(made):
    alias = Nothing.apply
    function = made.function_of(alias, lambda x, g: g)
    found = made.derived_of(function, made.x)
    graph = found.problem.graph(found.problem.primals).value
    (gradient,) = found.problem.back(graph, [torch.ones_like(made.x)]).value
    assert torch.allclose(gradient, 2 * made.x)
