"""Cases past constants of the source, through the command: what is no threshold, what values explain."""

from __future__ import annotations

import json

import forked_command

MODULE = """
import torch


class Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        if x.shape[0] % 2:
            raise ValueError("pairs")
        return torch.stack([x[:, i] * x[:, i] for i in range(3)], 1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        d = torch.empty_like(x)
        for i in range(3):
            d[:, i] = 2 * g[:, i] * x[:, i]
        return d


class Rare(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.cat([part * part for part in x.split(64)])

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x * torch.where((x > 1.5) & (x < 1.65), 2, 1)


class Tail(Rare):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        n = x.shape[0]
        return 2 * g * x * (torch.arange(n) < max(n // 64 * 64, 64))
"""

SPEC = """
gradverify: 1
module: m.py
functions:
  Turned: {sizes: {n: 2}, inputs: {x: [n, 3]}}
  Rare: {sizes: {n: 5}, inputs: {x: {shape: [n], range: [-2, 2]}}}
  Tail: {sizes: {n: 5}, inputs: {x: {shape: [n], range: [-2, 2]}}}
"""


def test_past_constants(tmp_path):
    (tmp_path / "m.py").write_text(MODULE)
    (tmp_path / "m.gradverify.yaml").write_text(SPEC.lstrip())
    ran = forked_command.run(["check", "m.py", "--format", "json"], tmp_path)
    targets = {t["name"]: t for t in json.loads(ran.out)["targets"]}
    # A loop over a fixed axis is no threshold of another size, which forward refuses for its own reason.
    assert targets["Turned"]["status"] == "passed"
    assert not targets["Turned"]["swept"]["not_past"]
    # What a rare value explains is wrong at the declared size as well.
    (found,) = targets["Rare"]["findings"]
    assert (found["code"], found["severity"], found["case"]["id"]) == ("GV101", "error", "n=5")
    # What the size explains is reported as before.
    (found,) = targets["Tail"]["findings"]
    assert (found["code"], targets["Tail"]["status"]) == ("GV109", "inconclusive")
    assert "no spec says that n=65, just past 64" in found["message"]
