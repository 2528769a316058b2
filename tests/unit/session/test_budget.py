"""`--budget`: what is not begun once it is spent is said, whatever comes after the cases."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from gradverify.events import (
    BeyondJudged,
    BeyondStarted,
    CaseStarted,
    CaseVerified,
    DiagnosisStarted,
)
from gradverify.model import (
    Beyond,
    Case,
    Evaluations,
    InputSource,
    Outcome,
    Point,
    Settings,
    Target,
    TargetKind,
    TargetPlan,
)
from gradverify.rules import CHECK_FAMILIES
from gradverify.session.aggregate import TargetState
from gradverify.session.ended import take_end
from gradverify.session.request import Progress, TargetProgress
from gradverify.session.verifying import _run_within_budget
from gradverify.session.worker_errors import WorkerTimedOutError

TARGET = Target("f", "f", TargetKind.FUNCTION, "m.py", 1)
PAST = tuple(
    Beyond(Case(f"n={n}", n, (("n", n),)), constant, "n")
    for constant, n in (("BLOCK = 8", 9), ("TILE = 16", 17))
)


@dataclass
class Worker:
    """Answers with given events; the budget is spent at once."""

    events: tuple
    seconds: float = 0.0
    closed: bool = False
    asked: list = field(default_factory=list)

    def ask(self, request, limit, memory):
        for event in self.events:
            self.seconds += 1.0
            self.asked.append(event)
            yield event

    def printed(self, until):
        return ""


def verified(case_id):
    return CaseVerified(
        case_id=case_id,
        checks=tuple((f.value, Outcome.PASSED) for f in CHECK_FAMILIES),
        evaluations=Evaluations(1, 1),
        points=1,
        smallest_visible_error=None,
        capabilities=(),
    )


def ran(*events, budget=0.5, cases=("a",), **plan):
    worker = Worker(events)
    plan = TargetPlan("f", "f", InputSource.SPEC, tuple(Case(c, 1) for c in cases), **plan)
    state = TargetState(TARGET, plan, Settings(), None)
    module = SimpleNamespace(running=lambda request: worker, close=lambda: setattr(worker, "closed", True))
    request = SimpleNamespace(clock=lambda: worker.seconds, budget=budget, timeout=60.0, memory=0)
    planned = SimpleNamespace(module=module, target=TARGET, plan=None)
    _run_within_budget(planned, plan, request, state, TargetProgress(Progress(), TARGET))
    return worker, state


def started(case_id):
    return CaseStarted(case_id, Point.TYPICAL, 0)


def test_the_first_case_is_always_verified():
    worker, state = ran(started("a"), verified("a"), started("b"), cases=("a", "b"))
    assert worker.closed
    assert state.unchecked_because == "its budget of 0.5 s was spent with 1 of 2 cases verified"


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (started("n=7"), "other sizes, which the spec leaves open: the budget was spent"),
        (DiagnosisStarted(), "the search for a cause: the budget was spent"),
    ],
)
def test_what_comes_after_the_cases_is_reported_as_left_out(event, said):
    worker, state = ran(started("a"), verified("a"), event)
    assert worker.closed
    assert not state.unchecked_because
    assert said in state.report().left_out


def test_every_case_past_a_constant_is_reported():
    _, state = ran(started("a"), verified("a"), BeyondStarted(PAST[0]), beyond=PAST)
    assert list(state.report().swept.not_past) == [
        "BLOCK = 8 (n=9): the budget was spent",
        "TILE = 16 (n=17): the budget was spent",
    ]


def test_without_a_budget_nothing_is_left_out():
    events = (started("a"), verified("a"), BeyondStarted(PAST[0]), BeyondJudged(), DiagnosisStarted())
    worker, state = ran(*events, budget=None, beyond=PAST)
    assert not worker.closed
    assert worker.asked == list(events)
    assert state.report().swept.past == ("BLOCK = 8 (n=9)",)
    assert not state.report().left_out


def test_a_search_that_takes_too_long_is_reported():
    _, state = ran(started("a"), verified("a"), DiagnosisStarted(), budget=None)
    planned = SimpleNamespace(module=None, target=TARGET)
    take_end(planned, state, WorkerTimedOutError("was still running"), None)
    assert state.report().left_out == ("the search for a cause: the process was still running",)
    assert not state.unchecked_because
