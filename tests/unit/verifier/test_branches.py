"""Comparisons of a source that points saw on one side alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

from gradverify.model import Case, Point, Settings, Swept, Target, TargetKind, TensorInput
from gradverify.verifier.questions.samples import prepare
from gradverify.verifier.questions.subject import Sample, Subject
from gradverify.verifier.verify.branches import branches_seen


class Branching(Function):
    """Compares in `where`, in an `if`, and numbers of Python."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        if x.norm() < 1e-4:
            return x
        if x.shape[0] > 20 or x.sum().item() > 1e9:
            return -x
        return torch.where(x > 0, x, x.exp())

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.where(x >= -100, g, torch.zeros_like(g)) * torch.where(x > 0, 1.0, x.exp())


class Straight(Function):
    """Compares nothing."""

    calls = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        Straight.calls += 1
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g


def sample_of(function: type[Function], draw: int = 0) -> Sample:
    target = Target("a.py", function.__name__, TargetKind.FUNCTION, "a.py", 1)
    subject = Subject(
        target, function.apply, Settings(), own_forward=function.forward, function_class=function
    )
    sample = prepare(subject, Case("base", 3, inputs=(TensorInput("x", (6,)),)), Point.TYPICAL, draw)
    assert isinstance(sample, Sample)
    return sample


@pytest.fixture
def seen() -> Swept:
    return branches_seen(sample_of(Branching))


def test_comparisons_of_where_and_if_are_seen_with_their_lines(seen: Swept) -> None:
    words = [one.rpartition(" (line ")[0] for one in seen.on_one_side]
    assert words == ["x >= -100", "x.norm() < 1e-4"]


def test_other_points_may_see_the_other_side(seen: Swept) -> None:
    (small,) = [one for one in seen.on_one_side if "norm" in one]
    assert small not in seen.joined(Swept(ever_true=(small,))).on_one_side


def test_a_source_without_comparisons_is_not_called_again() -> None:
    sample = sample_of(Straight)
    before = Straight.calls
    assert (branches_seen(sample), Straight.calls) == (Swept(), before)
