"""Planted faults: what each does to a backward, and what the checks make of it."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
import torch
from extent import ALL_SEEDS
from torch.autograd import Function

from gradverify.demo import functions as demo
from gradverify.events import Found, Verify
from gradverify.model import Case, InputSource, Settings, Severity, TargetPlan, TensorInput
from gradverify.verifier.process.run import verify
from gradverify.verifier.targets.discover import describe_target
from gradverify.verifier.verify.verification import Live

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
from faults import FAULTS, Scope, fault_named
from planting import Planted

sys.path.pop()

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


def found(function, planted, rtol=1e-7):
    """The errors of a callable with the fault in it, at one case of three square inputs."""

    def called(x, weight, bias):
        return planted.around(function)(x, weight, bias)

    inputs = tuple(
        TensorInput(name, shape) for name, shape in (("x", (3, 3)), ("weight", (3, 3)), ("bias", (3,)))
    )
    target = describe_target(called, "called", "called", "m.py")
    plan = TargetPlan("called", "called", InputSource.SPEC, cases=(Case("base", 3, inputs=inputs),))
    events = verify(Verify(target, plan, Settings(rtol=rtol)), Live(called))
    return [e.finding for e in events if isinstance(e, Found) and e.finding.severity is Severity.ERROR]


def places(fault):
    """Positions of the arguments of Linear that the fault fits; one of them, another for each fault."""
    fitting = [k for k, shape in enumerate(((3, 3), (3, 3), (3,))) if fault.fits(shape)]
    if fault.scope is Scope.GRADIENT:
        return [(k,) for k in (fitting if ALL_SEEDS else [fitting[FAULTS.index(fault) % len(fitting)]])]
    return [(0, 1)] if fault.scope is Scope.PAIR else [()]


BEYOND_TOLERANCE = [fault for fault in FAULTS if fault.name != "float32 inside"]
"""A cast in a hook is in the graph that torch derives as well, and off by less than the tolerance."""


@pytest.mark.parametrize("fault", BEYOND_TOLERANCE, ids=[fault.name for fault in BEYOND_TOLERANCE])
def test_every_fault_is_found_and_located(fault):
    for positions in places(fault):
        planted = Planted(fault, positions)
        errors = found(demo.Linear.apply, planted)
        assert planted.changed
        assert errors, positions
        changed = [("x", "weight", "bias")[k] for k in positions]
        if changed:
            assert {f.input for f in errors if f.input} <= set(changed)
        if fault.place is not None:
            place = fault.place(((3, 3), (3, 3), (3,))[positions[0]])
            entries = itertools.chain.from_iterable(f.entries.worst for f in errors if f.entries)
            assert all(entry.input is None or entry.input[: len(place)] == place for entry in entries)


def test_what_is_finer_than_the_tolerance_is_no_error():
    planted = Planted(fault_named("one entry off by 1e-6"), (0,))
    assert found(demo.Linear.apply, planted, rtol=1e-3) == []
    assert planted.changed
