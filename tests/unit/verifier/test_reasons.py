"""Why a guess may have made a mismatch: reasons, where each holds and where it does not."""

from dataclasses import replace

import pytest
import torch
from torch.autograd import Function

from gradverify.model import Case, Finding, Point, Settings, Severity, Target, TargetKind
from gradverify.verifier import guard
from gradverify.verifier.checks.neighbours import Excuses, Neighbours
from gradverify.verifier.checks.subject import Sample, Subject
from gradverify.verifier.doubt.domains import right_at_definite
from gradverify.verifier.doubt.inferred_inputs import AT_DECLARED
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.problem import CallProblem, Layout

CONVERGES = "that forward's iteration converges at such values"


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


def reasons(function, *values):
    """What was guessed, by each reason that holds for it."""
    sample, finding = mismatch(function, *values)
    near = Neighbours(sample)
    return [found.message for reason in AT_DECLARED if (found := reason(near, finding)) is not None]


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
    assert any(CONVERGES in message for message in reasons(function, *values)) is holds


def test_what_excuses_a_gradient_excuses_its_derivative():
    sample, first = mismatch(Picard, [0.3, 1.2], [1.9, -1.6])
    second = replace(first, code="GV201", message="the second derivative is wrong")
    excuses, near = Excuses(), Neighbours(sample)
    assert excuses.of_first_order(near, second) is None
    assert excuses.first(("GV101", "x1", 0), near, first, AT_DECLARED) is not None
    excused = excuses.of_first_order(Neighbours(sample), second)
    assert excused is not None and excused.severity is Severity.WARNING
    assert "the second derivative is wrong" in excused.message and CONVERGES in excused.message
    assert excuses.of_first_order(near, replace(first, code="GV401")) is None


class Descended(Function):
    """The root of a number, and backward, too, by steps that stop at a tolerance of their own."""

    @staticmethod
    def forward(ctx, a):
        y = a.abs().sqrt()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        found = torch.zeros_like(g)
        while bool(((g - 2 * y * found).abs() > 1e-3).any()):
            found = found + 0.1 * (g - 2 * y * found)
        return found


def test_a_backward_that_repeats_a_step_is_doubted_where_it_is_not_linear():
    sample, first = mismatch(Descended, [0.3, 1.2, 1.9])
    found = [r(Neighbours(sample), replace(first, code="GV106")) for r in AT_DECLARED]
    messages = [one.message for one in found if one is not None]
    assert "that backward's iteration converges at such values" in messages[0]
    sample, first = mismatch(Picard, [0.3, 1.2], [0.4, 0.1])
    assert all(r(Neighbours(sample), replace(first, code="GV106")) is None for r in AT_DECLARED)


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


@pytest.mark.parametrize(
    ("function", "declared"), [(SizesOfEigenvalues, "`structure: spd` of `x0`"), (TwiceTheSizes, "")]
)
def test_what_is_right_at_definite_matrices_alone_is_doubted(function, declared):
    sample, _ = mismatch(function, [[1.0, 2.0], [2.5, -1.0]])
    assert right_at_definite(sample) == declared
