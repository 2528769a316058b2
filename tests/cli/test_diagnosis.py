"""The cause of a failure through the command; and a diagnosis that ends its process costs no verdict."""

from __future__ import annotations

import json
import subprocess
import sys

MODULE = """
import os

import torch


class Triple(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        {guard}
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 6 * x * g
"""


SPEC = "gradverify: 1\nmodule: m.py\nfunctions: {Triple: {sizes: {n: 4, d: 3}, inputs: {x: [n, d]}}}\n"


def _finding(folder, guard, *options):
    (folder / "m.py").write_text(MODULE.format(guard=guard))
    command = [sys.executable, "-m", "gradverify", "check", "m.py", "--format", "json", *options]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 1, ran.stderr
    (target,) = json.loads(ran.stdout)["targets"]
    assert target["status"] == "failed"
    (finding,) = target["findings"]
    return finding


def test_the_cause_is_in_the_report(tmp_path):
    finding = _finding(tmp_path, "pass")
    assert (finding["code"], finding["cause"], finding["factor"]) == ("GV101", "constant-factor", 3.0)
    assert finding["hint"].startswith("The gradient of `x` is 3 times too large at every entry (checked at 3")


def test_a_process_that_ends_at_other_sizes_costs_no_verdict(tmp_path):
    (tmp_path / "m.gradverify.yaml").write_text(SPEC)
    finding = _finding(tmp_path, "os._exit(3) if x.shape != (4, 3) else None")
    assert finding["code"] == "GV101"
    assert not finding.get("cause")


def test_what_drafts_a_backward_reads_the_same_spec(tmp_path):
    (tmp_path / "apart.yaml").write_text(SPEC)
    finding = _finding(tmp_path, "pass", "--spec", "apart.yaml")
    offer = "gradverify suggest m.py::Triple --spec apart.yaml"
    assert finding["hint"].endswith(f"`{offer}` drafts a backward.")
    command = [sys.executable, "-m", *offer.split()]
    drafted = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert drafted.returncode == 0, drafted.stderr
    assert "def backward" in drafted.stdout
