"""Functions that communicate and have no spec, through the command: each reading of their placements."""

from __future__ import annotations

import json
from pathlib import Path

import extent
import forked_command
import pytest

pytestmark = extent.long

MODULE = """
import torch
import torch.distributed as dist
from torch.autograd import Function


class Reduce(Function):
    @staticmethod
    def forward(ctx, x, group):
        y = x.clone()
        dist.all_reduce(y, group=group)
        return y

    @staticmethod
    def backward(ctx, g):
        return g, None


class Biased(Reduce):
    @staticmethod
    def forward(ctx, x, bias, group):
        y = x.clone()
        dist.all_reduce(y, group=group)
        return y + bias

    @staticmethod
    def backward(ctx, g):
        return g, g.sum(0), None


class Tripled(Reduce):
    @staticmethod
    def backward(ctx, g):
        return 3 * g, None


class Hangs(Function):
    @staticmethod
    def forward(ctx, x, group):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        if dist.get_rank() == 0:
            dist.all_reduce(g.clone())
        return 2 * g, None
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("readings")
    (made / "m.py").write_text(MODULE)
    return made


@pytest.fixture(scope="module")
def found(folder):
    return checked(folder)


def checked(folder: Path, target: str = "m.py") -> dict:
    done = forked_command.run(["check", target, "--format", "json", "--timeout", "20"], folder)
    assert done.out, done.err
    return {target["name"]: target for target in json.loads(done.out)["targets"]}


def test_a_reading_that_makes_backward_right_is_named_and_proves_nothing(found):
    said = {name: found[name]["findings"] for name in ("Reduce", "Biased")}
    assert {(found[name]["status"], f["code"]) for name, (f,) in said.items()} == {("inconclusive", "GV109")}
    assert said["Reduce"][0]["message"] == (
        "placements inferred: backward is right if each rank has its own `x`, the output counts once"
    )
    assert said["Biased"][0]["message"] == (
        "placements inferred: backward is right if each rank has its own `x`, every rank has the same "
        "`bias`, the output counts once"
    )


def test_what_no_reading_makes_right_fails(found):
    assert found["Tripled"]["status"] == "failed"
    (wrong,) = found["Tripled"]["findings"]
    assert wrong["code"] == "GV101"
    assert "No reading of its placements makes it right; this is of the closest, where" in wrong["hint"]


def test_ranks_out_of_step_in_backward_fail(found):
    assert found["Hangs"]["status"] == "failed"
    (hang,) = found["Hangs"]["findings"]
    assert hang["code"] == "GV723"
    assert "rank 0 is in all_reduce (m.py:45), rank 1 has gone on without it" in hang["message"]


def test_the_draft_has_the_first_reading_to_confirm(tmp_path):
    (tmp_path / "m.py").write_text(MODULE)
    drafted = forked_command.run(["init", "m.py::Biased"], tmp_path).out
    assert "# If the entry says what is meant, remove the #; else correct it." in drafted
    sentences = (" is inconclusive.", "If the entry")
    lines = [line for line in drafted.splitlines() if not any(s in line for s in sentences)]
    spec = "\n".join(line.replace("  # ", "  ", 1) for line in lines)
    assert "bias: {shape: [d], placement: replicate}" in spec
    (tmp_path / "m.gradverify.yaml").write_text(spec)
    assert checked(tmp_path, "m.py::Biased")["Biased"]["status"] == "passed"
