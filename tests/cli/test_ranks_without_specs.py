"""Functions that communicate and have no spec: how their tensors lie on the ranks only a spec can say."""

from __future__ import annotations

import json

import forked_command

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
"""


def test_without_a_spec_it_is_unchecked_with_the_entry_to_fill_in(tmp_path):
    (tmp_path / "m.py").write_text(MODULE)
    done = forked_command.run(["check", "m.py::Biased", "--format", "json"], tmp_path)
    (target,) = json.loads(done.out)["targets"]
    (finding,) = target["findings"]
    assert (done.code, target["status"], finding["code"]) == (1, "unchecked", "GV001")
    assert "only a spec can say: it calls dist.all_reduce, line 23" in finding["message"]
    assert "bias: {shape: [b, n], placement: local}" in finding["hint"]


def test_the_draft_is_that_entry_and_holds_once_it_is_filled_in(tmp_path):
    (tmp_path / "m.py").write_text(MODULE)
    drafted = forked_command.run(["init", "m.py::Biased"], tmp_path).out
    lines = [line for line in drafted.splitlines() if "#   " not in line or ":" in line]
    spec = "\n".join(line.replace("  # ", "  ", 1) for line in lines if "only a spec" not in line)
    spec = spec.replace("Biased: no inputs could be inferred. Give their shapes and remove the #.", "")
    spec = spec.replace("bias: {shape: [b, n], placement: local}", "bias: {shape: [n], placement: replicate}")
    spec = spec.replace("output_placement: local", "output_placement: replicate")
    (tmp_path / "m.gradverify.yaml").write_text(spec)
    done = forked_command.run(["check", "m.py::Biased", "--format", "json"], tmp_path)
    assert [t["status"] for t in json.loads(done.out)["targets"]] == ["passed"], done.out + done.err
