"""The cause of a failure through the command; and a diagnosis that ends its process costs no verdict."""

from __future__ import annotations

import json

import forked_command

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
    ran = forked_command.run(["check", "m.py", "--format", "json", *options], folder)
    assert ran.code == 1, ran.err
    (target,) = json.loads(ran.out)["targets"]
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
    drafted = forked_command.run(offer.split()[1:], tmp_path)
    assert drafted.code == 0, drafted.err
    assert "def backward" in drafted.out


CLAMPED = """
import torch


class HardSigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x / 6 + 0.5).clamp(0, 1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ((x > -3) & (x < 6)) / 6


class Blocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x * x).sum(1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        d = torch.zeros_like(x)
        for start in range(0, x.shape[1] // 64 * 64, 64):
            d[:, start : start + 64] = 2 * x[:, start : start + 64] * g[:, None]
        return d
"""

CLAMPED_SPEC = """
gradverify: 1
module: m.py
functions:
  HardSigmoid:
    sizes: {k: 6, m: 5}
    inputs: {x: {shape: [k, m], range: [-5, 5]}}
    ignore: {GV2: "first order"}
  Blocks: {sizes: {d: 2}, inputs: {x: [d, 150]}, ignore: {GV2: "first order"}}
"""


def test_what_is_wrong_at_some_values_or_indices_only_is_reported_by_them(tmp_path):
    """A clamp that ordinary values do not reach, and a tail behind whole blocks."""
    (tmp_path / "m.py").write_text(CLAMPED)
    (tmp_path / "m.gradverify.yaml").write_text(CLAMPED_SPEC.lstrip())
    ran = forked_command.run(["check", "m.py", "--format", "json"], tmp_path)
    assert ran.code == 1, ran.err
    targets = {t["name"]: t for t in json.loads(ran.out)["targets"]}
    (clamped,) = targets["HardSigmoid"]["findings"]
    assert (clamped["code"], clamped["cause"]) == ("GV101", "branch")
    assert "wrong only where `x > c`" in clamped["hint"]
    (tail,) = targets["Blocks"]["findings"]
    assert (tail["code"], tail["cause"]) == ("GV101", "region")
    assert "the slices from index 128 on along dimension 1 of `x`" in tail["hint"]


OF_OPTIONS = """
import torch


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, momentum):
        ctx.momentum = momentum
        return momentum * x

    @staticmethod
    def backward(ctx, g):
        return 3 * g, None


class Momentum(Scale):
    @staticmethod
    def backward(ctx, g):
        return ctx.momentum * g / (1 - ctx.momentum), None


class Third(Scale):
    @staticmethod
    def backward(ctx, g):
        return 3 * ctx.momentum * g, None


class Twice(Scale):
    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.momentum * g, None


class BySize(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, momentum):
        return x * (momentum or x.shape[-1] ** -0.5)

    @staticmethod
    def backward(ctx, g):
        return g, None
"""


def test_a_cause_that_was_tested_at_one_value_of_an_option_says_so(tmp_path):
    (tmp_path / "m.py").write_text(OF_OPTIONS)
    entry = "{inputs: {x: [n, d], momentum: {choices: [0.75, 0.6]}}}"
    names = "\n".join(f"  {name}: {entry}" for name in ("Scale", "Momentum", "Third"))
    names += "\n  Twice: {inputs: {x: [n, d], momentum: {choices: [2, 3]}}}"
    by_size = "  BySize: {sizes: {n: 2, d: [4, 7]}, inputs: {x: [n, d], momentum: {choices: [null, 0.75]}}}\n"
    spec = f"gradverify: 1\nmodule: m.py\nfunctions:\n{names}\n{by_size}"
    (tmp_path / "m.gradverify.yaml").write_text(spec)
    ran = forked_command.run(["check", "m.py", "--format", "json"], tmp_path)
    first = {t["name"]: t["findings"][0] for t in json.loads(ran.out)["targets"]}
    hints = {name: finding["hint"] for name, finding in first.items()}
    checked = "(checked at 3 points of 2 sizes, all with `momentum={}`)"
    assert f"4 times too large at every entry {checked.format(0.75)}" in hints["Scale"]
    assert f"4 times too large at every entry {checked.format(0.75)}" in hints["Momentum"]
    assert f"3 times too large at every entry {checked.format(0.75)}" in hints["Third"]
    assert f"2 times too large at every entry {checked.format(2)}" in hints["Twice"]
    assert f"the factor is `sqrt(x.shape[1])` {checked.format(None)}" in hints["BySize"]
    assert first["Scale"]["changes"][0]["after"] == "return (ctx.momentum * g, None)"
    assert "+        return ctx.momentum * g, None" in first["Scale"]["fix"]["diff"]
