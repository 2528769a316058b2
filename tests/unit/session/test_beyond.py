"""What becomes of a target whose process ends in a case that nobody asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradverify.events import BeyondDoubted, BeyondJudged, BeyondStarted
from gradverify.model import Beyond, Case, InputSource, Settings, Severity, Target, TargetKind, TargetPlan
from gradverify.session.aggregate import TargetState
from gradverify.session.ended import _end_beyond
from gradverify.session.worker_ended import WorkerDiedError, WorkerTimedOutError, WorkerTooBigError

BEYOND = Beyond(Case("n=257, past BLOCK = 128", 1, sizes=(("n", 257),)), "BLOCK = 128", "n")


@pytest.fixture
def state() -> TargetState:
    target = Target("F", "F", TargetKind.FUNCTION, "m.py", 1)
    state = TargetState(target, TargetPlan("F", "F", InputSource.SPEC), Settings(), Path("m.py"))
    state.add(BeyondStarted(BEYOND), str)
    return state


def test_what_was_verified_is_past_the_constant(state) -> None:
    state.add(BeyondJudged(), str)
    assert (state.past.past, state.past.not_past) == (("BLOCK = 128 (n=257)",), ())
    state.add(BeyondStarted(BEYOND), str)
    state.add(BeyondJudged("forward raises ValueError"), str)
    assert state.past.not_past == ("BLOCK = 128 (n=257): forward raises ValueError",)


@pytest.mark.parametrize("error", [WorkerTimedOutError("was running"), WorkerTooBigError("took 2 GiB")])
def test_a_limit_there_is_reported_and_fails_nothing(state, error) -> None:
    _end_beyond(state, error)
    assert not state.findings
    assert state.past.not_past == ("BLOCK = 128 (n=257): it takes too long or too much memory",)


def test_a_limit_after_probes_disagreed_is_no_pass(state) -> None:
    state.add(BeyondDoubted(), str)
    _end_beyond(state, WorkerTimedOutError("was running"))
    (finding,) = state.findings
    assert (finding.code, finding.severity) == ("GV109", Severity.WARNING)
    assert "n=257, past BLOCK = 128" in finding.message
    assert "probes do not agree" in finding.message


def test_a_crash_there_is_no_pass(state) -> None:
    _end_beyond(state, WorkerDiedError("was killed by SIGSEGV"))
    (finding,) = state.findings
    assert finding.code == "GV109"
    assert "was killed by SIGSEGV" in finding.message
