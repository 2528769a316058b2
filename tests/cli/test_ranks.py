"""Functions that communicate, through the command: verdicts, causes, hangs, and nothing left running."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import forked_command

ZOO = Path(__file__).parents[1] / "zoo" / "ranks"

SHORT = ("CopyWithoutReduction", "ReducesOnFirstRankAlone", "IgnoresGroup", "ReducesInputInPlace")
"""One of each kind; all others are asked by `tests/exhaustive`."""


def checked(*asked: str) -> dict:
    done = forked_command.run(["check", *asked, "--format", "json"], ZOO)
    assert done.out, done.err
    return {target["name"]: target for target in json.loads(done.out)["targets"]}


def test_each_kind_of_mistake_has_its_code_its_place_and_its_cause():
    found = checked(*(f"wrong.py::{name}[world=2]" for name in SHORT))
    first = found["CopyWithoutReduction"]["findings"]
    assert {f["code"] for f in first} == {"GV101", "GV722"}
    assert {f["cause"] for f in first} == {"missing-reduction", None}
    (hang,) = found["ReducesOnFirstRankAlone"]["findings"]
    assert hang["code"] == "GV723"
    assert "rank 0 is in all_reduce (right.py:11), rank 1 has gone on without it" in hang["message"]
    (group,) = found["IgnoresGroup"]["findings"]
    assert group["code"] == "GV724"
    assert "in another group than the one it was given" in group["message"]
    assert "GV402" in {f["code"] for f in found["ReducesInputInPlace"]["findings"]}


def test_right_ones_pass_on_the_first_order_alone_unless_more_is_asked():
    found = checked("right.py", "--effort", "quick")
    assert {name: target["status"] for name, target in found.items()} == dict.fromkeys(found, "passed")
    assert found["CopyToRegion"]["checks"]["gradgradcheck"] == "not-run"
    assert found["SumOfTwo"]["checks"]["gradgradcheck"] == "passed"


def test_no_rank_outlives_the_command():
    mark = f"GRADVERIFY_TEST_{os.getpid()}"
    command = [sys.executable, "-m", "gradverify", "check", "wrong.py::EndsOneRank"]
    subprocess.run(command, cwd=ZOO, env={**os.environ, mark: "1"}, capture_output=True, check=False)
    environments = (p for p in Path("/proc").glob("[0-9]*/environ") if p.parent.name != str(os.getpid()))
    left = []
    for environment in environments:
        try:
            left += [environment.parent.name] if mark.encode() in environment.read_bytes() else []
        except OSError:
            continue
    assert left == []


def test_what_shows_on_ranks_alone_is_not_dumped_as_a_script(tmp_path):
    found = checked("wrong.py::ReducesOnFirstRankAlone[world=2]", "--dump", str(tmp_path / "dumped"))
    (hang,) = found["ReducesOnFirstRankAlone"]["findings"]
    assert "--dump wrote nothing: a script runs in one process" in hang["hint"]
    assert not list((tmp_path / "dumped").glob("*"))
