"""Planted faults: what each does to a backward, and what the checks make of it."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import Function
from torch.library import custom_op

from gradverify.demo import functions as demo
from gradverify.events import Verify
from gradverify.model import Case, InputSource, MutationOutcome, Settings, TargetPlan, TensorInput
from gradverify.verifier.building import Live
from gradverify.verifier.collect.discover import describe_target
from gradverify.verifier.mutation.faults import FAULTS, fault_named
from gradverify.verifier.mutation.planting import Planted
from gradverify.verifier.mutation.run import mutate

X = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)


class Twice(Function):
    @staticmethod
    def forward(ctx, x, y):
        return 2 * x + 3 * y

    @staticmethod
    def backward(ctx, g):
        return 2 * g, 3 * g


def gradients(fault, *positions, u=None):
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    u = X / 7 if u is None else u
    planted = Planted(fault_named(fault), positions)
    found = torch.autograd.grad(planted.around(Twice.apply)(x, y), (x, y), u)
    return [g / u for g in found], planted.changed


@pytest.mark.parametrize(
    ("fault", "positions", "first", "second"),
    [
        ("factor 2", (0,), 4, 3),
        ("sign", (1,), 2, -3),
        ("zero gradient", (0,), 0, 3),
        ("one entry zero", (0,), torch.tensor([[2, 2], [2, 0]]), 3),
        ("tail dropped", (1,), 2, torch.tensor([[3, 0], [3, 0]])),
        ("transposed", (0,), 2 * X.mT / X, 3),
        ("gradients swapped", (0, 1), 3, 2),
        ("grad_output squared", (), 2 * X / 7, 3 * X / 7),
        ("detached", (), 2, 3),
    ],
)
def test_what_a_fault_does(fault, positions, first, second):
    (x, y), changed = gradients(fault, *positions)
    assert changed is (fault != "detached")
    assert torch.allclose(x, torch.as_tensor(first, dtype=torch.float64).expand(2, 2))
    assert torch.allclose(y, torch.as_tensor(second, dtype=torch.float64).expand(2, 2))


def test_small_faults():
    assert gradients("factor 1 + 1e-6", 0)[0][0][0, 0].item() == pytest.approx(2 * (1 + 1e-6), rel=1e-12)
    assert gradients("float32 inside", 0)[1]


@pytest.mark.parametrize(
    ("fault", "u"),
    [("transposed", X + X.mT), ("float32 inside", X), ("grad_output ignored", torch.ones_like(X))],
)
def test_what_changes_nothing_has_no_effect(fault, u):
    assert not gradients(fault, 0, u=u)[1]


def outcomes(function, fault, *shapes, rtol=1e-7):
    target = describe_target(function, function.__name__, function.__name__, "m.py")
    inputs = tuple(TensorInput(p.name, s) for p, s in zip(target.parameters, shapes, strict=False))
    plan = TargetPlan(target.name, target.name, InputSource.SPEC, cases=(Case("base", 3, inputs=inputs),))
    request = Verify(target, plan, Settings(rtol=rtol))
    return [event.mutation for event in mutate(request, fault, Live(function))]


@pytest.mark.parametrize("fault", [fault.name for fault in FAULTS])
def test_every_fault_is_caught_and_located(fault):
    found = outcomes(demo.Linear, fault, (3, 3), (3, 3), (3,))
    assert len(found) == {"transposed": 2, "gradients swapped": 1}.get(fault, len(found))
    assert [m.outcome for m in found] == [MutationOutcome.CAUGHT] * len(found)
    assert found
    assert all(m.located for m in found)


def test_a_weak_case_is_reported():
    (tail,) = outcomes(demo.GELU, "one entry off by 1e-6", (4,), rtol=1e-3)
    assert (tail.outcome, tail.inputs) == (MutationOutcome.ESCAPED, ("x",))
    assert outcomes(demo.GELU, "tail dropped", (1,)) == []
    sign = outcomes(demo.Linear, "sign", (0, 3), (2, 3))[0]
    assert sign.outcome is MutationOutcome.NO_EFFECT


def test_a_second_derivative_that_raises_cannot_be_wrong():
    (found,) = outcomes(demo.LogSumExp, "second derivative, sign", (3, 4))
    assert found.outcome is MutationOutcome.NO_EFFECT
    (found,) = outcomes(demo.LogSumExp, "detached", (3, 4))
    assert (found.outcome, found.code) == (MutationOutcome.CAUGHT, "GV202")


def added_up(x, y, scale=2.0):
    return x + scale * y


def alike(x, y):
    return x + y


class Shifted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = torch.nn.Parameter(torch.zeros(4, 3))

    def forward(self, x):
        return x.sin() + self.shift


@custom_op("gradverify_test_mutation::product", mutates_args=())
def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * y


def _product_backward(ctx, g):
    x, y = ctx.saved_tensors
    return g * y, g * x


product.register_autograd(
    _product_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
)


def outcomes_of(value, fault, *inputs, **settings):
    tensors = tuple(TensorInput(name, (4, 3)) for name in inputs)
    target = describe_target(value, "target", "target", "here.py")
    plan = TargetPlan("target", "target", InputSource.SPEC, cases=(Case("base", seed=7, inputs=tensors),))
    asked = Verify(target, plan, Settings(rtol=1e-7, **settings))
    return {e.mutation.inputs: e.mutation for e in mutate(asked, fault, Live(value))}


@pytest.mark.parametrize(
    ("value", "inputs", "named"),
    [
        (added_up, ("x", "y"), [("x",), ("y",)]),
        (Shifted, ("x",), [("x",), ("self.shift",)]),
        (product, ("x", "y"), [("x",), ("y",)]),
    ],
    ids=["callable", "module", "custom op"],
)
@pytest.mark.parametrize("fault", ["factor 2", "one entry zero", "zero gradient"])
def test_whatever_has_a_gradient_can_have_a_fault(value, inputs, named, fault):
    found = outcomes_of(value, fault, *inputs)
    assert list(found) == named
    assert all(m.outcome is MutationOutcome.CAUGHT and m.located for m in found.values())


@pytest.mark.parametrize("value", [added_up, product], ids=["callable", "custom op"])
@pytest.mark.parametrize("fault", ["grad_output ignored", "grad_output squared", "gradients swapped"])
def test_faults_of_more_than_one_gradient(value, fault):
    (found,) = outcomes_of(value, fault, "x", "y").values()
    assert found.outcome is MutationOutcome.CAUGHT


def test_a_fault_on_the_way_escapes_checks_that_do_not_resolve_it():
    tensors = (TensorInput("x", (4, 3)), TensorInput("y", (4, 3)))
    target = describe_target(added_up, "target", "target", "here.py")
    plan = TargetPlan("target", "target", InputSource.SPEC, cases=(Case("base", seed=7, inputs=tensors),))
    asked = Verify(target, plan, Settings(rtol=1e-3))
    assert {e.mutation.outcome for e in mutate(asked, "factor 1 + 1e-6", Live(added_up))} == {
        MutationOutcome.ESCAPED
    }


def test_equal_gradients_that_change_places_change_nothing():
    (found,) = outcomes_of(alike, "gradients swapped", "x", "y").values()
    assert found.outcome is MutationOutcome.NO_EFFECT
