"""A gradient that its own rounding moves by more than a tenth: a wrong layout is not excused by that."""

from __future__ import annotations

import json

import forked_command

MODULE = """
import torch


class Unstable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        scaled = x * 2**20
        near = torch.where(scaled == scaled.round(), 0.0, 0.5)
        return g * (x.cos() + near) * (1.0 if g.is_contiguous() else 1.2)


class Stable(Unstable):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos() * (1.0 if g.is_contiguous() else 1.2)
"""

VALUES = "[[0.5, -1.0, 1.5], [0.25, 2.0, -0.75]]"

SPEC = f"""
gradverify: 1
module: m.py
functions:
  Unstable: {{inputs: {{x: {{value: {VALUES}, dtype: float64, requires_grad: true}}}}}}
  Stable: {{inputs: {{x: {{value: {VALUES}, dtype: float64, requires_grad: true}}}}}}
"""


def test_what_its_own_rounding_hides_is_unknown(tmp_path):
    (tmp_path / "m.py").write_text(MODULE)
    (tmp_path / "m.gradverify.yaml").write_text(SPEC)
    done = forked_command.run(["check", "m.py", "--format", "json", "--select", "GV1,GV404"], tmp_path)
    found = {t["name"]: t for t in json.loads(done.out)["targets"]}
    assert found["Stable"]["status"] == "failed"
    assert "GV404" in {f["code"] for f in found["Stable"]["findings"]}
    assert found["Unstable"]["status"] == "inconclusive", done.out
    (unknown, *_) = (f for f in found["Unstable"]["findings"] if f["code"] == "GV109")
    assert "it is unstable, its own rounding moves x[" in unknown["message"]


CANCELLING = """
import torch


class MaskedAttention(torch.autograd.Function):
    # Where all rows of `v` are one, the gradient of `q` is what rounding leaves of its terms.

    @staticmethod
    def forward(ctx, q, k, v, mask):
        ctx.save_for_backward(q, k, v, mask)
        s = (q @ k.transpose(-1, -2)).masked_fill(~mask, float("-inf"))
        return s.softmax(-1).nan_to_num(0.0) @ v

    @staticmethod
    def backward(ctx, g):
        q, k, v, mask = ctx.saved_tensors
        s = (q @ k.transpose(-1, -2)).masked_fill(~mask, -1e30)
        p = s.softmax(-1) * mask
        gp = g @ v.transpose(-1, -2)
        gs = p * (gp - (gp * p).sum(-1, keepdim=True))
        return gs @ k, gs.transpose(-1, -2) @ q, p.transpose(-1, -2) @ g, None
"""


def test_what_cancels_in_an_expanded_input_is_rounding(tmp_path):
    (tmp_path / "m.py").write_text(CANCELLING)
    done = forked_command.run(["check", "m.py", "--format", "json"], tmp_path)
    (found,) = json.loads(done.out)["targets"]
    assert (found["status"], found["findings"]) == ("passed", [])
