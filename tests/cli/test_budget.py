"""`--budget`: no further case begins once it is spent, and what is left is not green."""

from __future__ import annotations

import json

import extent
import forked_command
import pytest

MODULE = """
import time

import torch


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        time.sleep(0.02)
        return 2 * x

    @staticmethod
    def backward(ctx, grad_output):
        return {factor} * grad_output


class Next(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 3 * x

    @staticmethod
    def backward(ctx, grad_output):
        return 3 * grad_output
"""

SPEC = """
gradverify: 1
module: m.py
functions:
  Slow: {sizes: {n: [3, 4, 5]}, inputs: {x: [n]}}
  Next: {inputs: {x: [n]}}
"""


def _targets(folder, factor, *options):
    (folder / "m.py").write_text(MODULE.format(factor=factor))
    (folder / "m.gradverify.yaml").write_text(SPEC)
    ran = forked_command.run(["check", "m.py", "--format", "json", *options], folder)
    return ran, {target["name"]: target for target in json.loads(ran.out)["targets"]}


@pytest.mark.parametrize(("factor", "status"), [(2, "unchecked"), (5, "failed")])
def test_a_spent_budget(tmp_path, factor, status):
    ran, targets = _targets(tmp_path, factor, "--budget", "0.01")
    assert ran.code == 1
    assert (targets["Slow"]["status"], targets["Next"]["status"]) == (status, "passed")
    if status == "unchecked":
        assert targets["Slow"]["reason"] == "its budget of 0.01 s was spent with 1 of 3 cases verified"


@extent.long
def test_an_ample_budget_changes_nothing(tmp_path):
    ran, targets = _targets(tmp_path, 2, "--budget", "100")
    assert (ran.code, targets["Slow"]["status"]) == (0, "passed")


@pytest.mark.parametrize("value", ["0", "-1", "nan"])
def test_a_budget_that_is_none(tmp_path, value):
    (tmp_path / "m.py").write_text(MODULE.format(factor=2))
    ran = forked_command.run(["check", "m.py", f"--budget={value}"], tmp_path)
    assert (ran.code, ran.out) == (2, "")
    assert "--budget" in ran.err
