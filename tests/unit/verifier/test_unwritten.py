"""Memory that was never written is reported, whatever it holds at that moment."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from gradverify.model import Case, Point, Settings, Target, TargetKind, TensorInput
from gradverify.verifier.questions.again import read_unwritten
from gradverify.verifier.questions.subject import Sample, Subject, prepare

NAN = float("nan")


class FirstUnwritten(torch.autograd.Function):
    """Its first gradient is what lies in memory: NaN where memory is filled, else what `lying` says."""

    lying: list[float]

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        grad = 2 * g
        here = torch.empty_like(g)
        if here.isnan().all():
            grad[0] = NAN
        else:
            grad[0] = FirstUnwritten.lying.pop(0) if FirstUnwritten.lying else 0.0
        return grad


class NotANumber(torch.autograd.Function):
    """Its first gradient is NaN by its formula."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        grad = 2 * g
        grad[0] = NAN
        return grad


def sample_of(function: type[torch.autograd.Function]) -> Sample:
    name = function.__name__
    subject = Subject(
        target=Target(name, name, TargetKind.FUNCTION, "functions.py", 1),
        function=function.apply,
        settings=Settings(),
    )
    sample = prepare(subject, Case("base", 3, inputs=(TensorInput("x", (300,)),)), Point.TYPICAL, 0)
    assert isinstance(sample, Sample)
    return sample


@pytest.mark.parametrize("lying", [[], [1.5], [NAN], [NAN, NAN]], ids=str)
def test_left_over_nan_hides_nothing(lying: list[float]) -> None:
    FirstUnwritten.lying = list(lying)
    (finding,) = read_unwritten(sample_of(FirstUnwritten))
    assert finding.code == "GV410"
    assert "the gradient of `x` is NaN" in finding.message


def test_a_formula_that_gives_nan_reads_nothing() -> None:
    assert read_unwritten(sample_of(NotANumber)) == ()
