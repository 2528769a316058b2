"""What is no fault of the target's: ranks that cannot be started, failures of our own code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gradverify.model import Target, TargetKind
from gradverify.verifier.guard import NotJudgedError, OutOfStepError
from gradverify.verifier.guard.raised_errors import RaisedElsewhereError
from gradverify.verifier.ranks import starter
from gradverify.verifier.ranks.collectives import Watched
from gradverify.verifier.ranks.messages import Forward, Setup
from gradverify.verifier.ranks.world import RankBrokenError, World

TARGET = Target("Copy", "Copy", TargetKind.CALLABLE, "m.py", 1)


def world_of(file: Path) -> World:
    return World(Setup(1, str(file), tuple(sys.path), TARGET, ("x",), "cpu", "", store="", address=""))


def test_ranks_that_cannot_be_started(monkeypatch, tmp_path):
    def refused(_setup):
        raise OSError("no more processes")

    monkeypatch.setattr(starter, "fork", refused)
    with pytest.raises(RankBrokenError, match="cannot be started: no more processes"):
        world_of(tmp_path / "m.py").ask([Forward(0, (), (), 0)], "in forward")


def test_a_failure_of_ours_on_a_rank(tmp_path):
    (tmp_path / "m.py").write_text("def Copy(x):\n    return x\n")
    world = world_of(tmp_path / "m.py")
    try:
        with pytest.raises(RankBrokenError, match="AttributeError"):
            world.ask(["what nobody sends"], "in forward")
    finally:
        world.close()


def test_a_module_that_ranks_cannot_import_is_the_users(tmp_path):
    (tmp_path / "m.py").write_text("raise ValueError('only on a rank')\n")
    world = world_of(tmp_path / "m.py")
    for _ in range(2):  # the next call tries again
        with pytest.raises(RaisedElsewhereError, match="only on a rank"):
            world.ask([Forward(0, (), (), 0)], "in forward")


def test_a_rank_that_ends_on_a_shared_gpu_shows_nothing(monkeypatch, tmp_path):
    (tmp_path / "m.py").write_text("import os\n\n\ndef Copy():\n    os.abort()\n")
    call = [Forward(0, (), (), 0)]
    for shared, error in ((False, OutOfStepError), (True, NotJudgedError)):
        monkeypatch.setattr("gradverify.verifier.ranks.world.shares_a_gpu", lambda *_, s=shared: s)
        with pytest.raises(error, match="rank 0 has ended"):
            world_of(tmp_path / "m.py").ask(call, "in forward")


class Operation:
    """As much of an operation of the dispatcher as is looked at."""

    def __init__(self, name):
        self._schema = type("Schema", (), {"name": name})

    def __call__(self, *_args, **_given):
        return "done"


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("c10d::allreduce_", ["all_reduce"]),
        ("_c10d_functional::all_reduce", ["all_reduce"]),
        ("_c10d_functional::wait_tensor", []),
        ("c10d::recv_any_source_", []),
        ("aten::add", []),
    ],
)
def test_which_operations_wait_for_other_ranks(name, reported):
    seen = []
    assert (
        Watched(lambda entered: seen.append(entered.operation)).operation(Operation(name), (), {}) == "done"
    )
    assert seen == reported
