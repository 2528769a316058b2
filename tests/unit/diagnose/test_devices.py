"""Where changes of a backward run whose gradient is wrong on a device."""

from dataclasses import replace

import torch
from torch.autograd import Function

from gradverify.model import Case, Parameter, Point, Settings, Target, TargetKind, TensorInput
from gradverify.verifier.diagnose.confirmation import own_backward_of, with_primals
from gradverify.verifier.diagnose.edits.own_backward import Repairs
from gradverify.verifier.questions.subject import Sample, Subject, prepare


class Double(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad_output):
        return 3 * grad_output


def test_changes_run_on_the_cpu_at_the_values_of_the_device():
    target = Target("Double", "Double", TargetKind.FUNCTION, "m.py", 1, (Parameter("x"),))
    subject = Subject(target, Double.apply, Settings(), function_class=Double)
    case = Case("base", 3, inputs=(TensorInput("x", (4,)),))
    sample = prepare(subject, case, Point.TYPICAL, 0)
    assert isinstance(sample, Sample)
    moved = replace(sample, problem=with_primals(sample.problem, [5 * p for p in sample.problem.primals]))
    for device in ("cpu", "cuda"):
        there = replace(moved, subject=replace(subject, settings=replace(subject.settings, device=device)))
        own = own_backward_of(there, Repairs())
        assert own is not None, device
        assert torch.equal(own.problem.primals[0], moved.problem.primals[0])
        assert own.problem.outputs == sample.problem.outputs
        assert own.is_started()
        assert (own.pulled_back(0, torch.ones(4), Double.backward) == 3).all()
