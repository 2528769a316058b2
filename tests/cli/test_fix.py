"""`check --fix`: what is written, what is taken back, and what the JSON report offers to others."""

from __future__ import annotations

import json
import re
import subprocess

import forked_command
import pytest

MODULE = """\
import torch
from torch.autograd import Function


class Product(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors  # both
        return g * a, g * b


class DoubleOrHalve(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x if x.sum() > 0 else x / 2

    @staticmethod
    def backward(ctx, g):
        return g * 2.0
"""

SINE = """\
import torch
from torch.autograd import Function


class Sine(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return (g
                * x.sin())
"""
"""Its inputs are inferred; in a file of its own, since all of a file is verified where it is changed."""

SPEC = """\
gradverify: 1
module: m.py
functions:
  Product: {inputs: {a: [2, 3], b: [2, 3]}}
  DoubleOrHalve: {inputs: {x: {shape: [4], range: [-3, -1]}}}
  DoubleOrHalve@positive: {target: DoubleOrHalve, inputs: {x: {shape: [4], range: [1, 3]}}}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "m.py").write_bytes(MODULE.replace("\n", "\r\n").encode())
    (tmp_path / "sine.py").write_bytes(SINE.replace("\n", "\r\n").encode())
    (tmp_path / "m.gradverify.yaml").write_text(SPEC)
    return tmp_path


def lines(folder, file="m.py"):
    return (folder / file).read_bytes().decode().split("\r\n")


def test_what_is_right_with_its_change_is_written_and_the_rest_is_not(folder):
    done = forked_command.run(["check", "m.py", "--fix", "--effort", "quick"], folder)
    assert done.code == 1
    assert done.out.startswith(
        "fixed m.py:13 Product\n"
        "  - a, b = ctx.saved_tensors  # both\n"
        "  + b, a = ctx.saved_tensors  # both\n"
        "not fixed: DoubleOrHalve: with the change DoubleOrHalve@positive does not pass any more\n"
        "1 Function fixed, and verified again at two seeds\n"
    )
    assert "1 failed" in done.out  # the report is of the file as it is now
    expected = MODULE.replace("a, b = ctx.saved", "b, a = ctx.saved").split("\n")
    assert lines(folder) == expected


def test_inferred_inputs_count_where_that_is_asked_for(folder):
    asked = ["check", "sine.py", "--fix", "--effort", "quick"]
    done = forked_command.run(asked, folder)
    assert "not fixed: Sine: its inputs were inferred: pass --unsafe-fixes, or write a spec\n" in done.out
    assert lines(folder, "sine.py") == SINE.split("\n")
    done = forked_command.run([*asked, "--unsafe-fixes", "--format", "json"], folder)
    assert json.loads(done.out)["summary"]["passed"] == 1  # stdout is the report alone
    assert "fixed sine.py:15 Sine" in done.err
    assert done.code == 0
    assert "        return (g" in lines(folder, "sine.py")
    assert "                * x.cos())" in lines(folder, "sine.py")


def test_nothing_to_fix_is_said(folder):
    done = forked_command.run(["check", "m.py::DoubleOrHalve@positive", "--fix"], folder)
    assert done.out.startswith("nothing to fix\n")
    assert done.code == 0
    rest = "y = ctx.saved_tensors[0]\n        return g * y * (1 - y)\n"
    softmax = MODULE + "\n\nclass Softmax(Function):\n    @staticmethod\n"
    softmax += "    def forward(ctx, x):\n        y = torch.softmax(x, 1)\n        ctx.save_for_backward(y)\n"
    softmax += f"        return y\n\n    @staticmethod\n    def backward(ctx, g):\n        {rest}"
    (folder / "m.py").write_text(softmax)
    done = forked_command.run(["check", "m.py::Softmax", "--fix"], folder)
    assert "`gradverify suggest m.py::Softmax --write` tries a whole backward\n" in done.out


def test_the_json_report_has_a_diff_that_git_applies(folder):
    done = forked_command.run(["check", "m.py::Product", "--format", "json"], folder)
    (target,) = json.loads(done.out)["targets"]
    fix = target["findings"][0]["fix"]
    assert fix["safe"] is True
    assert fix["verified_at"] > 1
    (folder / "m.py").write_text(MODULE)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    subprocess.run(["git", "apply", "-"], input=fix["diff"].encode(), cwd=folder, check=True)
    assert "b, a = ctx.saved_tensors  # both" in (folder / "m.py").read_text()


@pytest.mark.parametrize("options", [["--unsafe-fixes"], ["--fix", "--watch"], ["--fix", "--in-process"]])
def test_options_that_do_not_go_together(folder, options):
    assert forked_command.run(["check", "m.py", *options], folder).code == 2
    assert "\r\n".join(lines(folder)) == MODULE.replace("\n", "\r\n")


CUT = """\
import torch
from torch.autograd import Function


class Tanh(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.tanh(x)
        ctx.save_for_backward(y * y)
        return y

    @staticmethod
    def backward(ctx, g):
        (squared,) = ctx.saved_tensors
        return g * (1 - squared)
"""


def test_a_second_derivative_that_is_cut_is_refused_where_that_is_asked_for(tmp_path):
    (tmp_path / "m.py").write_text(CUT)
    (tmp_path / "m.gradverify.yaml").write_text(
        "gradverify: 1\nmodule: m.py\nfunctions:\n  Tanh: {inputs: {x: [2, 3]}}\n"
    )
    document = json.loads(forked_command.run(["check", "m.py", "--format", "json"], tmp_path).out)
    assert document["summary"]["first_order_only"] == 1
    (finding,) = document["targets"][0]["findings"]
    assert (finding["code"], finding["fix"]["safe"]) == ("GV202", False)
    done = forked_command.run(["check", "m.py", "--fix"], tmp_path)
    assert "a second derivative raises: pass --unsafe-fixes if none is meant" in done.out + done.err
    assert "1 failed (in second order alone)" in done.out
    assert (tmp_path / "m.py").read_text() == CUT
    assert forked_command.run(["check", "m.py", "--fix", "--unsafe-fixes"], tmp_path).code == 0
    decorated = "    @torch.autograd.function.once_differentiable\n    def backward"
    assert (tmp_path / "m.py").read_text() == CUT.replace("    def backward", decorated)


KEPT = """\
import torch
from torch.autograd import Function


class Cut(Function):
    @staticmethod
    def forward(ctx, x):
        s = torch.sigmoid(x)
        ctx.save_for_backward(x, s * (1 - s))
        return s

    @staticmethod
    def backward(ctx, g):
        x, slope = ctx.saved_tensors
        return g * slope


class Writes(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g.mul_(x.cos())


class Mixed(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        of_a = g * b if ctx.needs_input_grad[0] else None
        of_b = g * a if ctx.needs_input_grad[0] else None
        return of_a, of_b
"""
"""First-order values are right: what a change takes back is a cut, a write, an input that is left out."""


def test_a_change_that_leaves_the_values_as_they_are_is_found(tmp_path):
    (tmp_path / "kept.py").write_text(KEPT)
    inputs = {"Cut": "x: [2, 3]", "Writes": "x: [2, 3]", "Mixed": "a: [2, 3], b: [2, 3]"}
    entries = "".join(f"  {name}: {{inputs: {{{given}}}}}\n" for name, given in inputs.items())
    (tmp_path / "kept.gradverify.yaml").write_text(f"gradverify: 1\nmodule: kept.py\nfunctions:\n{entries}")
    document = json.loads(forked_command.run(["check", "kept.py", "--format", "json"], tmp_path).out)
    found = {t["name"]: t["findings"] for t in document["targets"]}
    diffs = {name: next(f["fix"]["diff"] for f in each if f["fix"]) for name, each in found.items()}
    assert {name: re.findall(r"^\+ +(.+)$", diff, re.MULTILINE) for name, diff in diffs.items()} == {
        "Cut": ["slope = torch.sigmoid(x) * (1 - torch.sigmoid(x))", "return g * slope"],
        "Writes": ["return g.mul(x.cos())"],
        "Mixed": ["of_b = g * a if ctx.needs_input_grad[1] else None"],
    }
