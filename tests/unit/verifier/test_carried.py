"""What an argument carries into forward past autograd is said: nothing verifies its gradient."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradverify.model import Case, Point, Settings, Severity, Target, TargetKind, TensorInput
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.questions.contract import contract
from gradverify.verifier.questions.results import first_order
from gradverify.verifier.questions.subject import Sample, Subject, prepare


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g


@pytest.fixture(scope="module")
def sample() -> Sample:
    target = Target("Doubled", "Doubled", TargetKind.FUNCTION, "functions.py", 1)
    subject = Subject(target=target, function=Doubled.apply, settings=Settings())
    made = prepare(subject, Case("base", 3, inputs=(TensorInput("x", (3,)),)), Point.TYPICAL, 0)
    assert isinstance(made, Sample)
    return made


def notes(sample: Sample, value: object) -> list[str]:
    """What is said of GV107 where `value` is an argument, too."""
    first = first_order(sample)
    beside = replace(sample, arguments=(*sample.arguments, Argument("layer", value)))
    found = [f for f in contract(beside, first).findings if f.code == "GV107"]
    assert all(f.severity is Severity.NOTE and f.input == "layer" for f in found)
    return [f.message for f in found]


def frozen(layer: nn.Module) -> nn.Module:
    return layer.requires_grad_(requires_grad=False)


class Overridden(nn.Linear):
    def named_parameters(self, *arguments: Any, **options: Any) -> Any:
        raise RuntimeError("asked of the author's own method")


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (nn.Linear(2, 2, bias=False), "`weight`, no input of forward"),
        (nn.Linear(2, 2), "`weight` and `bias`, no input of forward"),
        (nn.Linear(2, 2).forward, "`weight` and `bias`, no input"),
        (Overridden(2, 2), "`weight` and `bias`, no input"),
        (nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU()), "`0.weight`, no input"),
    ],
)
def test_parameters_that_an_argument_carries_are_named(sample, value, named):
    (said,) = notes(sample, value)
    assert said.startswith(f"`layer` carries {named}")
    assert "not verified" in said


@pytest.mark.parametrize(
    "value",
    [frozen(nn.Linear(2, 2)), nn.ReLU(), SimpleNamespace(scale=torch.ones(1), n=3), torch.relu, "sum", None],
)
def test_of_what_carries_none_nothing_is_said(sample, value):
    assert notes(sample, value) == []
