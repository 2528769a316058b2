"""Devices, autocast, Triton kernels through the command, where no GPU is needed: each folder in one run."""

from __future__ import annotations

import importlib.util
import json
import tempfile
from pathlib import Path

import pytest
import torch
import zoo
from extent import extent, long

LOOPING = extent(("RMSNorm", "LastChunk"), ())
"""Kernels that loop over blocks, which takes the interpreter long: --all-seeds has them."""

needs_second_device = pytest.mark.skipif(
    not hasattr(torch._C, "_acc") or not hasattr(torch._C._acc, "create_empty_tensor"),
    reason="needs devices written in Python, which this torch has not",
)
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="needs Triton, which is not installed"
)


FEW = extent(("Square", "OnlyOnTheCpu", "AnotherBranch"), ())
"""Of the devices these are enough: one that is right, one that runs on no other, one that differs."""


def run(folder: str, *options: str) -> tuple[int, dict, str]:
    """Both modules of a folder: the exit code, the JSON report, what stands on stdout."""
    with tempfile.TemporaryDirectory() as made:
        report = Path(made) / "report.json"
        asked = ["check", "right.py", "wrong.py", *options, "--report", f"json={report}", "--timeout", "600"]
        done = zoo.command(*asked, folder=zoo.ZOO / folder)
        assert report.exists(), done.err
        return done.code, json.loads(report.read_text()), done.out


def unlike_expected(folder: str, report: dict, left_out: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """By target, what is not as `expected.py` says."""
    rows = {name: row for (_, name, _), row in zoo.expected_of(folder).items() if name not in left_out}
    return zoo.all_complaints(report, rows)


@needs_second_device
def test_every_device_gives_the_gradient_of_the_cpu() -> None:
    asked = ("-k", " or ".join(FEW)) if FEW else ()
    exit_code, report, screen = run("devices", "--device", "all", *asked)
    assert exit_code == 1
    others = {name for _, name, _ in zoo.expected_of("devices")} - {*FEW} if FEW else ()
    assert unlike_expected("devices", report, tuple(others)) == {}
    assert report["settings"]["device"] == "all"
    devices = {target["name"]: target["swept"]["devices"] for target in report["targets"]}
    assert devices["Square"] == ["cpu", "second:0"]
    assert devices["OnlyOnTheCpu"] == ["cpu"]
    found = {t["name"]: t["findings"][0] for t in report["targets"] if t["status"] == "failed"}
    assert found["AnotherBranch"]["case"]["draw"] == 1  # the first draw takes the other branch
    assert "an index that is not the default was not tried" in " ".join(screen.split())


def test_autocast_is_called_as_training_calls_it() -> None:
    exit_code, report, _ = run("autocast", "--autocast")
    assert exit_code == 1
    assert unlike_expected("autocast", report) == {}
    targets = {(t["file"], t["name"]): t for t in report["targets"]}
    answers = {key: t["capabilities"]["autocast"] for key, t in targets.items()}
    assert answers["right.py", "Refuses"] == "no"
    assert {n for (_, n), answer in answers.items() if answer == "wrong"} == {
        f["name"] for f in report["targets"] if f["status"] == "failed"
    }
    table = {p["dtype"]: p["closeness"] for p in targets["right.py", "LinearInFloat32"]["precision"]}
    assert table == {"float32": "within rounding", "autocast bfloat16": "correctly rounded"}
    reproduce = targets["wrong.py", "ForgetsBackward"]["findings"][0]["reproduce"]
    assert "--autocast --select GV603" in reproduce


@long
@needs_triton
def test_triton_kernels_are_verified_past_their_blocks() -> None:
    others = ("-k", " and ".join(f"not {name}" for name in LOOPING)) if LOOPING else ()
    exit_code, report, _ = run("triton", "--select", "GV1", *others)  # the interpreter is slow
    assert exit_code == 1
    assert unlike_expected("triton", report, LOOPING) == {}
    past = {target["name"]: target["swept"]["past"] for target in report["targets"]}
    assert {"BLOCK = 32 (n=32)", "BLOCK = 32 (n=33)", "BLOCK = 32 (n=64)"} <= set(past["QuickGELU"])
    assert {"a power of 2 (d=2)", "a power of 2 (d=3)"} <= set(past["RowSoftmax"])
