"""What one call of user code writes, keeps or holds reaches no other."""

import gc

import pytest
import torch
from torch import nn
from torch.autograd import Function

from gradverify.verifier import guard
from gradverify.verifier.guard.dispatching import Dispatched
from gradverify.verifier.inputs.arguments import Argument, arguments_of_call
from gradverify.verifier.numerics.problem import CallProblem, Layout
from gradverify.verifier.targets.module_target import build_module


class Spoils(Function):
    """Writes into grad_output and into what it saved."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y.clone()

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        y.data.mul_(g)
        g.zero_()
        return y


def problem_of(function, x):
    return CallProblem(
        function=function,
        arguments=(Argument("x", x, differentiable=True),),
        output_positions=(0,),
        outputs=Layout.of([x]),
        random_states=guard.RandomStates(0),
    )


def test_a_backward_that_writes_gives_each_row_from_what_forward_kept():
    x = torch.tensor([0.5, -1.0], dtype=torch.float64)
    ones = torch.ones(2, dtype=torch.float64)
    problem = problem_of(Spoils.apply, x)
    rows = problem.back_each(problem.graph([x]).value, [[ones], [2 * ones], [ones]])
    (first,), (second,), (third,) = rows.value
    assert torch.equal(first, x.exp())
    assert torch.equal(second, 2 * x.exp())
    assert torch.equal(third, x.exp())
    assert ones.all()


def test_results_are_no_buffer_of_the_function():
    buffer = torch.empty(2, dtype=torch.float64)
    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    problem = problem_of(lambda x: torch.mul(x.detach(), 2, out=buffer), x)
    (one,), (other,) = problem.evaluate([x]).value, problem.evaluate([3 * x]).value
    assert torch.equal(3 * one, other)


def test_a_call_gets_containers_of_its_own():
    given = {"dims": [0, 1], "names": ({"a"},)}
    (passed,) = arguments_of_call([Argument("options", given)], [given])
    passed["dims"].pop()
    passed["names"][0].clear()
    assert given == {"dims": [0, 1], "names": ({"a"},)}


class Watching(Dispatched):
    def operation(self, func, args, given):
        return func(*args, **given)


def refuses_modes(x):
    if torch._C._len_torch_dispatch_stack():
        raise RuntimeError("a mode is on")
    return x + 1


def test_what_raises_under_a_mode_of_ours_is_called_without():
    x = torch.ones(1)
    with Watching() as mode:
        result = guard.call(refuses_modes, x)
        assert torch._C._len_torch_dispatch_stack() == 1
    assert torch.equal(result.value, x + 1)
    assert mode.missed


def test_but_not_once_something_was_written():
    def writes_and_refuses(x):
        x.add_(1)
        return refuses_modes(x)

    x = torch.ones(1)
    with Watching():
        result = guard.call(writes_and_refuses, x)
    assert isinstance(result, guard.Raised)
    assert x.item() == 2


class Holding(Function):
    @staticmethod
    def forward(ctx, part, x, w):
        ctx.part = part
        ctx.save_for_backward(x)
        with torch.no_grad():
            return part(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            y = ctx.part(x)
        return None, *torch.autograd.grad(y, (x, ctx.part.weight), g)


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.also = self.weight

    def forward(self, x):
        return x * self.weight * self.also


class Outer(nn.Module):
    built = 0

    def __init__(self):
        super().__init__()
        Outer.built += 1
        self.part = Part()

    def forward(self, x):
        return Holding.apply(self.part, x, self.part.weight)


def called(built, x, w):
    x, w = (torch.tensor([v], dtype=torch.float64, requires_grad=True) for v in (x, w))
    return built.call(x.clone(), w.clone()), x, w


def test_calls_of_a_module_that_overlap_find_their_own_parameters():
    built = build_module(Outer)
    (y, x, w), (other, *_) = called(built, 3.0, 2.0), called(built, 5.0, 7.0)
    assert [g.item() for g in torch.autograd.grad(y, (x, w))] == [4.0, 12.0]
    assert other.item() == 5 * 7 * 7


def test_an_instance_is_used_again_when_its_graph_is_gone():
    Outer.built = 0
    built = build_module(Outer)
    for _ in range(5):
        y, x, w = called(built, 3.0, 2.0)
        torch.autograd.grad(y, (x, w))
        del y
        gc.collect()
    assert Outer.built == 1


@pytest.mark.parametrize("grad", [True, False])
def test_a_module_keeps_no_parameters_of_a_call_that_is_over(grad):
    built = build_module(Part)
    w = torch.ones(1, dtype=torch.float64, requires_grad=grad)
    with torch.set_grad_enabled(grad):
        y = built.call(w.detach(), w * 2)
    del y
    gc.collect()
    assert not [o for o in gc.get_objects() if type(o) is torch.Tensor and o.shape == (1,) and o.grad_fn]
