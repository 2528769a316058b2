"""Whether a mismatch is there at neighbouring inputs too: of each input by itself."""

import torch
from torch.autograd import Function

from gradverify.model import Case, Point, Settings, Target, TargetKind
from gradverify.verifier import guard
from gradverify.verifier.checks.neighbours import Neighbours, is_steady
from gradverify.verifier.checks.subject import Sample, Subject
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.problem import CallProblem, Layout


class Mixed(Function):
    """Steep and wrong in many entries of `a`, smooth and wrong in the one of `b`."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(b)
        return (1e5 * a).sin() + b * b

    @staticmethod
    def backward(ctx, g):
        (b,) = ctx.saved_tensors
        return 7 * g, 3 * (g * b).sum()


def test_chaos_in_one_input_excuses_nothing_of_another():
    generator = torch.Generator().manual_seed(0)
    a = torch.rand(12, generator=generator, dtype=torch.float64) + 0.5
    b = torch.tensor(1.25, dtype=torch.float64)
    arguments = (Argument("a", a, differentiable=True), Argument("b", b, differentiable=True))
    states = guard.RandomStates(0)
    problem = CallProblem(Mixed.apply, arguments, (0,), Layout.of([a]), states)
    target = Target("Mixed", "Mixed", TargetKind.FUNCTION, file=__file__, line=1)
    sample = Sample(
        Subject(target, Mixed.apply, Settings()), Case("", 0), Point.TYPICAL, 0, arguments, problem, 1
    )
    assert is_steady(Neighbours(sample), "b")
    assert not is_steady(Neighbours(sample), "a")
