"""Undeclared values of large inputs: no Jacobian is built that memory does not hold."""

import json

MODULE = """
import torch


class Relu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x > 0)
"""


def test_zeros_of_a_large_input_end(place):
    here = place("screens")
    (here.folder / "relu.py").write_text(MODULE)
    (here.folder / "relu.gradverify.yaml").write_text(
        "gradverify: 1\nmodule: relu.py\nfunctions:\n  Relu: {sizes: {n: [20000]}, inputs: {x: [n]}}\n"
    )
    (target,) = json.loads(here("check", "relu.py", "--format", "json").out)["targets"]
    assert target["status"] == "passed"
    assert sum(target["evaluations"].values()) < 1_000
