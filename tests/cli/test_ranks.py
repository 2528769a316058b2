"""Functions that communicate, through the command: verdicts, causes, hangs, and nothing left running."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import forked_command
import pytest
import verdicts_only

ZOO = Path(__file__).parents[1] / "zoo" / "ranks"

SHORT = (
    "CopyWithoutReduction",
    "ReducesOnFirstRankAlone",
    "IgnoresGroup",
    "ReducesInputInPlace",
    "ForwardNotReduced",
)
"""One of each kind; --all-seeds asks all others."""

RIGHT = ("CopyToRegion", "RowParallelLinear", "ExpertAllToAll", "ReduceToFirst", "AsyncWaited", "SumOfTwo")
"""One for each way in which tensors lie on ranks."""


def checked(*asked: str) -> dict:
    variables = {verdicts_only.CAUSES_OF: "CopyWithoutReduction"}
    environment = forked_command.plain_environment(**variables)
    done = forked_command.run(["check", *asked, "--format", "json"], ZOO, environment)
    assert done.out, done.err
    return {target["name"]: target for target in json.loads(done.out)["targets"]}


def test_each_kind_of_mistake_has_its_code_its_place_and_its_cause():
    found = checked(*(f"wrong.py::{name}[world=2]" for name in SHORT), "--effort", "quick")
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
    assert "GV721" in {f["code"] for f in found["ForwardNotReduced"]["findings"]}


def test_right_ones_pass_on_the_first_order_alone_unless_more_is_asked():
    found = checked(*(f"right.py::{name}" for name in RIGHT), "--effort", "quick")
    assert {name: target["status"] for name, target in found.items()} == dict.fromkeys(found, "passed")
    assert found["CopyToRegion"]["checks"]["gradgradcheck"] == "not-run"
    assert found["SumOfTwo"]["checks"]["gradgradcheck"] == "passed"


def test_no_rank_outlives_the_command(tmp_path):
    """Nor anything that ranks have written."""
    mark = f"GRADVERIFY_TEST_{os.getpid()}"
    command = [sys.executable, "-m", "gradverify", "check", "wrong.py::EndsOneRank[world=2]"]
    subprocess.run(
        command,
        cwd=ZOO,
        env={**os.environ, mark: "1", "TMPDIR": str(tmp_path)},
        capture_output=True,
        check=False,
    )
    environments = (p for p in Path("/proc").glob("[0-9]*/environ") if p.parent.name != str(os.getpid()))
    left = []
    for environment in environments:
        try:
            left += [environment.parent.name] if mark.encode() in environment.read_bytes() else []
        except OSError:
            continue
    assert left == []
    assert [*tmp_path.iterdir()] == []


MODULE = """
import torch
import torch.distributed as dist
from torch.autograd import Function


class Sum(Function):
    @staticmethod
    def forward(ctx, x, group):
        y = x.clone()
        dist.all_reduce(y, group=group)
        return y

    @staticmethod
    def backward(ctx, g):
        return g, None


class SumAtSomeSizes(Sum):
    @staticmethod
    def forward(ctx, x, group):
        y = x.clone()
        dist.all_reduce(y, group=group)
        return y + dist.get_rank(group) if x.shape[-1] == 4 else y


class Guarded(Function):
    @staticmethod
    def forward(ctx, x):
        y = 2 * x
        if dist.is_initialized():
            dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, g):
        return 2 * g


class Forgotten(Function):
    @staticmethod
    def forward(ctx, x, group):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g, None
"""

GROUP = "group: {process_group: world}"

SPEC = f"""
gradverify: 1
module: m.py
functions:
  Sum: {{world_size: 2, inputs: {{x: [b, n], {GROUP}}}, output_placement: [replicate, local]}}
  Sum@split: {{target: Sum, world_size: 2, inputs: {{x: [b, n], {GROUP}}}, output_placement: shard(5)}}
  Guarded: {{inputs: {{x: [b, n]}}}}
  SumAtSomeSizes: {{world_size: 2, inputs: {{x: [b, n], {GROUP}}}, output_placement: replicate}}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("ranks")
    (made / "m.py").write_text(MODULE)
    (made / "m.gradverify.yaml").write_text(SPEC)
    return made


def test_a_placement_that_is_none_fails_nobody(folder):
    done = forked_command.run(["check", "m.py", "--format", "json"], folder)
    found = {target["name"]: target for target in json.loads(done.out)["targets"]}
    said = {name: (found[name]["status"], found[name]["findings"][0]) for name in ("Sum", "Sum@split")}
    assert {(status, finding["code"]) for status, finding in said.values()} == {("unchecked", "GV001")}
    assert said["Sum"][1]["message"] == "forward returned 1 outputs, and 2 have a placement"
    assert "of shapes [4, 3], [4, 3], is no `shard(5)`" in said["Sum@split"][1]["message"]
    # What differs at sizes that nobody listed is found there, too.
    assert {f["code"] for f in found["SumAtSomeSizes"]["findings"]} == {"GV721"}
    assert found["Forgotten"]["status"] == "unchecked"  # how its tensors lie only a spec can say


def test_what_is_listed_is_what_would_run(folder):
    listed = forked_command.run(["list", "m.py"], folder).out
    checks = [line.split(maxsplit=1)[1] for line in listed.splitlines() if line.lstrip().startswith("checks")]
    assert sorted(checks) == [
        *["gradcheck, contract, gradgradcheck, precision"],
        *["gradcheck, contract, precision"] * 3,
    ]


def test_a_pass_in_one_process_says_so(folder):
    said = " ".join(forked_command.run(["check", "m.py::Guarded", "-v"], folder).out.split())
    assert "float32, one process only" in said
    assert "several ranks: it calls dist.all_reduce, line 32, and the spec has no `world_size`" in said
