"""Forward as a step of an input, by its values beside the point."""

import pytest
import torch
from torch.autograd import Function

from gradverify.model import Case, Finding, Point, Settings, Severity, Target, TargetKind
from gradverify.verifier import guard
from gradverify.verifier.checks.deliberate import looks_deliberate
from gradverify.verifier.checks.subject import Sample, Subject
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.problem import CallProblem, Layout

STEP = "that backward should be the derivative (forward is a step in `x`, flat between)"


def straight_through(step):
    class Step(Function):
        @staticmethod
        def forward(ctx, x):
            return step(x)

        @staticmethod
        def backward(ctx, g):
            return g

    return Step.apply


def penalised(forward, derivative):
    class Penalised(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * derivative(x) + 0.5 * x.sign()

    return Penalised.apply


def said(function, values, code="GV101"):
    x = torch.tensor(values, dtype=torch.float64)
    arguments = (Argument("x", x, differentiable=True),)
    states = guard.RandomStates(0)
    problem = CallProblem(function, arguments, (0,), Layout.of([function(x)]), states)
    target = Target("Step", "Step", TargetKind.FUNCTION, file=__file__, line=1)
    sample = Sample(
        Subject(target, function, Settings()), Case("", 0), Point.TYPICAL, 0, arguments, problem, 1
    )
    found = Finding(code, Severity.ERROR, "", input="x", output=0)
    return looks_deliberate(sample, found)


@pytest.mark.parametrize("values", [[0.3, 1.2, 2.7], [0.3, 1.2, 1.5, 2.7], [0.5, 0.3]])
def test_a_step_is_one_where_an_entry_lies_at_its_edge_too(values):
    assert said(straight_through(torch.round), values) == STEP


@pytest.mark.parametrize("step", [torch.relu, torch.abs, lambda x: x * x, lambda x: x.clamp(min=0.5)])
def test_what_moves_on_both_sides_is_none(step):
    assert said(straight_through(step), [-1.0, 0.4, 1.2, 2.7]) != STEP


def test_a_kink_of_every_entry_is_none():
    assert said(straight_through(torch.relu), [0.0, 0.0, 0.0]) != STEP


def test_a_penalty_is_meant_where_forward_needs_no_backward_alone():
    handed_on = penalised(lambda x: x.view_as(x), torch.ones_like)
    assert "returns `x` as it is" in said(handed_on, [0.3, -1.2], "GV106")
    stepping = penalised(torch.round, torch.ones_like)
    assert "has no slope in `x`" in said(stepping, [0.3, -1.2], "GV106")
    smooth = penalised(torch.sin, torch.cos)
    assert said(smooth, [0.3, -1.2], "GV106") == ""


def three_levels(x):
    kept = (x.abs() > 0.7 * x.abs().mean()).to(x)
    return x.sign() * kept * (x.abs() * kept).sum() / kept.sum().clamp(min=1)


def by_spread(x):
    step = x.square().mean().sqrt() / 2
    return (x / step).round() * step


ORDINARY = [0.3, -1.2, 2.7, -0.4, 0.9]


@pytest.mark.parametrize("step", [lambda x: x.sign() * x.abs().mean(), three_levels, by_spread])
def test_a_step_on_a_scale_that_every_entry_moves_is_one(step):
    assert "a step in entries of `x`" in said(straight_through(step), ORDINARY)


@pytest.mark.parametrize(
    "smooth",
    [
        lambda x: x.mean().expand(5).clone(),
        lambda x: x.relu() * x.abs().mean(),
        lambda x: x / x.abs().mean(),
        lambda x: x.sort().values * x.abs().mean(),
        lambda x: x.cummax(0).values,
        lambda x: x.softmax(0),
        lambda x: x * (x.abs() > 0.5),
    ],
)
def test_what_all_entries_scale_is_none(smooth):
    assert said(straight_through(smooth), ORDINARY) == ""
