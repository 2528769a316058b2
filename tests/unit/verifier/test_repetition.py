"""The same call again: which of forward and backward does not repeat itself, and by how much."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor

from gradverify.model import Case, Point, Settings, Severity, Target, TargetKind, TensorInput
from gradverify.verifier.questions.again import again
from gradverify.verifier.questions.subject import Sample, Subject, prepare
from gradverify.verifier.questions.table import asked
from gradverify.verifier.questions.verified import Verified, verified

GOLDEN = 0.6180339887498949


class OwnFactor(torch.autograd.Function):
    """A right gradient of a forward that takes another factor at each call."""

    calls = count()

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.factor = 1 + next(OwnFactor.calls) * GOLDEN % 1
        return x * ctx.factor

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.factor


class OwnGradient(torch.autograd.Function):
    """Forward repeats itself, and backward does not."""

    calls = count()

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * (1 + 1e-3 * (next(OwnGradient.calls) * GOLDEN % 1))


class OtherOrder(torch.autograd.Function):
    """Forward adds up in another order at each call."""

    calls = count()

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        order = torch.arange(len(x)).roll(next(OtherOrder.calls) % len(x)).tolist()
        return torch.stack([sum((x[k] for k in order), torch.zeros((), dtype=x.dtype))])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.expand(30)


def sample_of(function: type[torch.autograd.Function]) -> Sample:
    name = function.__name__
    subject = Subject(
        target=Target(name, name, TargetKind.FUNCTION, "functions.py", 1),
        function=function.apply,
        settings=Settings(),
    )
    sample = prepare(subject, Case("base", 3, inputs=(TensorInput("x", (30,)),)), Point.TYPICAL, 0)
    assert isinstance(sample, Sample)
    return sample


def verified_of(function: type[torch.autograd.Function]) -> Verified:
    base = verified(sample_of(function))
    assert base is not None
    return base


@pytest.mark.parametrize("start", range(40))
def test_a_forward_that_does_not_repeat_itself_accuses_no_backward(start: int) -> None:
    OwnFactor.calls = count(start)
    (finding,) = again(verified_of(OwnFactor)).findings
    assert finding.code == "GV109"
    assert finding.message.startswith("forward does not repeat itself")


@pytest.mark.parametrize("start", range(8))
def test_a_backward_that_does_not_repeat_itself_is_an_error(start: int) -> None:
    OwnGradient.calls = count(start)
    (finding,) = again(verified_of(OwnGradient)).findings
    assert (finding.code, finding.severity) == ("GV410", Severity.ERROR)


def test_sums_in_another_order_are_not_stochastic() -> None:
    assert again(verified_of(OtherOrder)).findings == ()


@pytest.mark.parametrize("start", range(40))
def test_nothing_is_held_against_the_gradient_of_a_stochastic_forward(start: int) -> None:
    OwnFactor.calls = count(start)
    sample = sample_of(OwnFactor)
    assert {f.code for f in asked(sample).findings} == {"GV109"}
