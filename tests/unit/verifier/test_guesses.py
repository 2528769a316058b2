"""What a guess excuses: a mismatch that is gone at a neighbour of the guess, or is meant."""

from dataclasses import replace

import pytest
import torch
from torch.autograd import Function

from gradverify.model import (
    Case,
    Entries,
    Entry,
    Finding,
    Outcome,
    Point,
    Settings,
    Severity,
    Target,
    TargetKind,
)
from gradverify.verifier import guard
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.neighbours.asking import Neighbour, Row, is_right
from gradverify.verifier.neighbours.guesses import AT_GUESSES, WHERE_FORWARD_CONVERGES, Excuses, guarded
from gradverify.verifier.neighbours.meant import no_derivative_meant
from gradverify.verifier.neighbours.values import OF_STRUCTURES, of_any_structure
from gradverify.verifier.numerics.problem import CallProblem, Layout
from gradverify.verifier.questions.findings import CheckResult
from gradverify.verifier.questions.subject import Sample, Subject


class Picard(Function):
    """y = x + a · sin(y) by repetition, which converges where |a| < 1; differentiated where it converges."""

    @staticmethod
    def forward(ctx, x, a):
        y = x.clone()
        for _ in range(50):
            y = x + a * torch.sin(y)
        ctx.save_for_backward(y, a)
        return y

    @staticmethod
    def backward(ctx, g):
        y, a = ctx.saved_tensors
        u = g / (1 - a * torch.cos(y))
        return u, u * torch.sin(y)


class PicardTwice(Picard):
    """Wrong where it converges, too."""

    @staticmethod
    def backward(ctx, g):
        of_x, of_a = Picard.backward(ctx, g)
        return of_x, 2 * of_a


class HeronRoot(Function):
    """A root by repetition, which converges where it starts near one."""

    @staticmethod
    def forward(ctx, a):
        y, left = a.clone(), 6
        while left:
            y, left = 0.5 * (y + a / y), left - 1
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g / (2 * y)


class Unrolled(Picard):
    """Backward repeats as forward does: it stops where that stops, and is judged there."""

    @staticmethod
    def backward(ctx, g):
        y, a = ctx.saved_tensors
        u = g
        for _ in range(3):
            u = g + u * a * torch.cos(y)
        return u, u * torch.sin(y)


class Adjoint(Picard):
    """Backward repeats its own step as often as forward: right where both converge."""

    @staticmethod
    def backward(ctx, g):
        y, a = ctx.saved_tensors
        u = g
        for _ in range(50):
            u = g + u * a * torch.cos(y)
        return u, u * torch.sin(y)


def mismatch(function, *values):
    """A mismatch in the last input, and its sample."""
    tensors = [torch.tensor(v, dtype=torch.float64) for v in values]
    arguments = tuple(Argument(f"x{k}", t, differentiable=True) for k, t in enumerate(tensors))
    states = guard.RandomStates(0)
    problem = CallProblem(function.apply, arguments, (0,), Layout.of([function.apply(*tensors)]), states)
    target = Target("Of", "Of", TargetKind.FUNCTION, file=__file__, line=1)
    subject = Subject(target, function.apply, Settings(), inferred=True, function_class=function)
    sample = Sample(subject, Case("", 0), Point.TYPICAL, 0, arguments, problem, 1)
    return sample, Finding("GV101", Severity.ERROR, "it is wrong", input=arguments[-1].name, output=0)


@pytest.mark.parametrize(
    ("function", "values", "holds"),
    [
        (Picard, ([0.3, 1.2], [1.9, -1.6]), True),
        (PicardTwice, ([0.3, 1.2], [1.9, -1.6]), False),
        (Unrolled, ([0.3, 1.2], [1.9, -1.6]), False),
        (Adjoint, ([0.3, 1.2], [1.9, -1.6]), True),
        (HeronRoot, ([-1.3, 0.2, -0.7],), True),
    ],
)
def test_an_iteration_that_may_not_converge_is_named_where_backward_is_right_once_it_does(
    function, values, holds
):
    assert (WHERE_FORWARD_CONVERGES(*mismatch(function, *values)) is not None) is holds


def test_what_excuses_a_gradient_excuses_its_derivative():
    sample, first = mismatch(Picard, [0.3, 1.2], [1.9, -1.6])
    second = replace(first, code="GV201", message="the second derivative is wrong")
    excuses = Excuses()
    found = guarded(sample, CheckResult((first, second), Outcome.FAILED), excuses)
    assert found.outcome is Outcome.INCONCLUSIVE
    excused = found.findings[1]
    assert excused.severity is Severity.WARNING and "`range: " in excused.hint
    assert "the second derivative is wrong" in excused.message
    written = replace(first, code="GV401")
    assert guarded(sample, CheckResult((written,), Outcome.FAILED), excuses).findings == (written,)


def test_a_backward_that_repeats_a_step_is_doubted_where_it_is_not_linear():
    sample, first = mismatch(Picard, [0.3, 1.2], [0.4, 0.1])
    assert all(reason(sample, replace(first, code="GV106")) is None for reason in AT_GUESSES)


class SizesOfEigenvalues(Function):
    """Their sum, which is the trace where all are positive, as its author has it."""

    @staticmethod
    def forward(ctx, a):
        return torch.linalg.eigvals(a).abs().sum()

    @staticmethod
    def backward(ctx, g):
        return g * torch.eye(2, dtype=torch.float64)


class TwiceTheSizes(SizesOfEigenvalues):
    """Wrong there, too."""

    @staticmethod
    def backward(ctx, g):
        return 2 * SizesOfEigenvalues.backward(ctx, g)


@pytest.mark.parametrize(("function", "declared"), [(SizesOfEigenvalues, "of `x0`"), (TwiceTheSizes, "")])
def test_what_is_right_at_matrices_of_a_structure_alone_is_doubted(function, declared):
    sample, finding = mismatch(function, [[1.0, 2.0], [2.5, -1.0]])
    excused = Row(OF_STRUCTURES, of_any_structure)(sample, finding)
    assert (excused is not None) is bool(declared)
    assert excused is None or declared in excused.message


class Cube(Function):
    """x³, and a flag that makes backward wrong at small numbers."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * g * x**2 * torch.where(x.abs() > 1, 1.0, 0.5)


def test_a_neighbour_tells_right_wrong_or_nothing():
    sample, _ = mismatch(Cube, [1.5, -2.0])
    assert is_right(Neighbour(sample), "x0") is True
    sample, _ = mismatch(Cube, [1.5, -0.5])
    assert is_right(Neighbour(sample), "x0") is False
    along_the_first = {"x0": lambda direction, _: direction * torch.tensor([1.0, 0.0]).double()}
    assert is_right(Neighbour(sample, along=along_the_first), "x0") is True
    nothing = {"x0": lambda direction, _: torch.zeros_like(direction)}
    assert is_right(Neighbour(sample, along=nothing), "x0") is None


def straight_through(step, factor=1.0):
    class Step(Function):
        @staticmethod
        def forward(ctx, x):
            return step(x)

        @staticmethod
        def backward(ctx, g):
            return factor * g

    return Step


def meant(function, values, expected):
    """What shows that a gradient is a choice, where the derivative of the worst entry is `expected`."""
    sample, finding = mismatch(function, values)
    entries = Entries(1, len(values), (Entry((1,), (1,), 1.0, expected, 0.0),))
    found = no_derivative_meant(sample, replace(finding, entries=entries))
    return "" if found is None else found.message


@pytest.mark.parametrize("values", [[0.3, 1.2, 2.7], [0.3, 1.2, 1.5, 2.7], [0.5, 0.3]])
def test_a_step_is_one_where_an_entry_lies_at_its_edge_too(values):
    assert "forward is a step in `x0`" in meant(straight_through(torch.round), values, 0.0)


@pytest.mark.parametrize("step", [torch.relu, torch.abs, lambda x: x * x, lambda x: x.clamp(min=0.5)])
def test_what_moves_on_both_sides_is_no_step(step):
    assert meant(straight_through(step), [-1.0, 0.4, 1.2, 2.7], 0.0) == ""


def test_what_is_handed_on_needs_no_backward():
    handed_on = straight_through(lambda x: x.view_as(x), -1.0)
    assert "returns `x0` as it is" in meant(handed_on, [0.3, -1.2], 1.0)


def by_rows(x):
    scale = x.abs().amax(-1, keepdim=True) / 7
    return torch.round(x / scale) * scale


@pytest.mark.parametrize(
    ("function", "holds"), [(by_rows, True), (lambda x: x.cummax(0).values, False), (torch.relu, False)]
)
def test_a_step_on_the_scale_of_the_largest_is_one_in_the_others(function, holds):
    found = meant(straight_through(function), [2.7, -0.3, 0.9], 0.0)
    assert ("a step in `x0`" in found) is holds
