"""Forward itself as a composite: where it exists, and that witnesses accuse no right Function."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gradverify.model import Case, Effort, Point, Settings, Target, TargetKind, TensorInput
from gradverify.verifier.questions.reference import composite_of
from gradverify.verifier.questions.results import first_order
from gradverify.verifier.questions.subject import Sample, Subject, prepare
from gradverify.verifier.targets.forward_itself import plain_forward, run_forward

_path = Path(__file__).with_name("composites.py")
_spec = importlib.util.spec_from_file_location("composites", _path)
FUNCTIONS = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(FUNCTIONS)

DRAWS = range(6)

RIGHT = [
    "DetachedPeak",
    "WithoutGraph",
    "InPlaceOnSaved",
    "Dropped",
    "AsksWhatIsNeeded",
    "BranchOnData",
    "BisectedSquareRoot",
    "DetachedNorm",
    "ByNumPy",
    "HalfByNumPy",
    "NewtonCubeRoot",
]


def sample_of(name: str, draw: int = 0) -> Sample:
    function = getattr(FUNCTIONS, name)
    names = ("a", "b") if name == "AsksWhatIsNeeded" else ("x",)
    positive = name in {"BisectedSquareRoot", "NewtonCubeRoot"}
    one = TensorInput("x", (3, 4), domain="positive" if positive else "real")
    case = Case("base", 11, inputs=tuple(replace(one, name=n) for n in names))
    subject = Subject(
        target=Target(name, name, TargetKind.FUNCTION, "composites.py", 1),
        function=function.apply,
        settings=Settings(effort=Effort.THOROUGH),
        own_forward=plain_forward(function),
    )
    sample = prepare(subject, case, Point.TYPICAL, draw)
    assert isinstance(sample, Sample)
    return sample


def test_without_a_forward_of_its_own_there_is_none() -> None:
    sample = sample_of("Dropped")
    callable_alone = replace(sample, subject=replace(sample.subject, own_forward=None))
    assert composite_of(sample) is not None
    assert composite_of(callable_alone) is None


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("name", RIGHT)
def test_accuses_no_right_function(name: str, draw: int) -> None:
    sample = sample_of(name, draw)
    assert first_order(sample).result.findings == ()


def test_the_stand_in_keeps_what_forward_tells_it() -> None:
    a, b = torch.ones(2, requires_grad=True), torch.ones(2)
    result, context = run_forward(FUNCTIONS.AsksWhatIsNeeded, (a, b))
    assert result.grad_fn is not None
    assert context.needs_input_grad == (True, False)
    assert context.saved_tensors == (b, None)
    assert context.materialize_grads is False
    assert context.attributes == {"shape": a.shape, "scale": 2.0}
