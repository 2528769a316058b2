"""What is said of a target whose worker was lost or ran out of time."""

from types import SimpleNamespace

import pytest

from gradverify.events import DiagnosisStarted
from gradverify.model import Case, Doubt, InputSource, RaisedError, Settings, Target, TargetKind, TargetPlan
from gradverify.session.aggregate import TargetState
from gradverify.session.ended import enough_time, take_end
from gradverify.session.worker_ended import WorkerDeviceLostError, WorkerTimedOutError, with_raised

TARGET = Target("f", "f", TargetKind.FUNCTION, "m.py", 1)
LOST = RaisedError("AcceleratorError", "CUDA error: an illegal memory access was encountered")


@pytest.mark.parametrize(
    ("source", "doubts", "code"),
    [
        (InputSource.SPEC, (), "GV901"),
        (InputSource.INFERRED, (), "GV901"),
        (InputSource.INFERRED, (Doubt("n", "`n` (3)"),), "GV109"),
        (InputSource.NONE, (), "GV001"),
    ],
)
def test_a_lost_device(source, doubts, code, tmp_path):
    plan = TargetPlan("f", "f", source, cases=(Case("a", 0),), doubts=doubts)
    state = TargetState(TARGET, plan, Settings(), tmp_path / "m.py")
    planned = SimpleNamespace(module=SimpleNamespace(path=tmp_path / "m.py"), target=TARGET)
    take_end(planned, state, with_raised(WorkerDeviceLostError("lost its device"), LOST), None)
    (finding,) = state.findings
    assert finding.code == code
    assert "illegal memory access" in finding.message
    assert ("`n` (3)" in finding.message) is bool(doubts)


def test_a_search_for_a_cause_that_takes_too_long_is_left_out():
    state = TargetState(TARGET, TargetPlan("f", "f", InputSource.SPEC), Settings(), None)
    state.add(DiagnosisStarted(), lambda until: "")
    planned = SimpleNamespace(module=None, target=TARGET)
    take_end(planned, state, WorkerTimedOutError("was still running"), None)
    assert state.report().left_out == ("the search for a cause: the process was still running",)


@pytest.mark.parametrize(
    ("calls", "seconds", "limit", "said"),
    [
        (32, 40.0, 60.0, "32 calls of forward and backward took 40 s, 1.2 s each. Use smaller sizes"),
        (0, 0.0, 60.0, "A call did not return for about 60 s: is there an endless loop?"),
        (2, 0.01, 60.0, "A call did not return for about 60 s: is there an endless loop?"),
        (64, 10.0, 60.0, "A call did not return for about 50 s: is there an endless loop?"),
    ],
)
def test_what_is_said_of_a_timeout(calls, seconds, limit, said):
    assert said in enough_time(calls, seconds, limit)
