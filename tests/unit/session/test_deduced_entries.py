"""An entry that was deduced, and that no spec can say, costs its own target alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import pytest

from gradverify.cases.inputs import ChoicesSpec, TensorSpec
from gradverify.cases.sweep import FunctionSpec, Sweep
from gradverify.deduced import Deduced
from gradverify.events import Inferred
from gradverify.model import Target, TargetKind
from gradverify.session.planning import NoInputs, Planned, infer_plan
from gradverify.session.request import Request

TARGET = Target("Twice", "Twice", TargetKind.FUNCTION, "module.py", 1)


@dataclass
class Answering:
    """A module whose worker has deduced something."""

    deduced: Deduced
    source: str = ""

    def running(self, _request: object) -> Answering:
        return self

    def ask(self, *_question: object) -> Iterator[Inferred]:
        yield Inferred(self.deduced)


@pytest.mark.parametrize("choices", [(0, 0), ("a", "a")])
def test_what_no_spec_can_say_is_no_mistake_in_a_spec(choices: tuple[Any, ...]) -> None:
    deduced = Deduced(FunctionSpec(Sweep((TensorSpec("x", (3,)), ChoicesSpec("dim", choices)))))
    planned = Planned(cast("Any", Answering(deduced)), TARGET, None)
    found = infer_plan(planned, Request(()))
    assert isinstance(found, NoInputs)
    assert found.finding.code == "GV001"
    assert "no spec can say them: functions.Twice.inputs.dim.choices" in found.finding.message
