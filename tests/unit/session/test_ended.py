"""What is said of a target whose device was lost: a mistake, unless a guess may have made it."""

from types import SimpleNamespace

import pytest

from gradverify.model import Case, Doubt, InputSource, RaisedError, Settings, Target, TargetKind, TargetPlan
from gradverify.session.aggregate import TargetState
from gradverify.session.ended import take_end
from gradverify.session.worker_errors import WorkerDeviceLostError, with_raised

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
