"""A parameter that defaults to None is tried as a tensor too: else its branch would pass unverified."""

from __future__ import annotations

import json

import forked_command
import pytest

MODULE = """
import torch


class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias=None):
        ctx.save_for_backward(x, weight, bias)
        y = x @ weight.t()
        return y if bias is None else y + bias

    @staticmethod
    def backward(ctx, grad_output):
        x, weight, bias = ctx.saved_tensors
        grad_bias = None if bias is None else grad_output.{reduction}(0)
        return {factor} * grad_output @ weight, grad_output.t() @ x, grad_bias
"""


@pytest.mark.parametrize(
    ("reduction", "factor", "status", "code"),
    [
        ("sum", 1, "passed", None),
        ("mean", 1, "inconclusive", "GV109"),  # wrong only where a tensor of a guessed shape is given
        ("sum", 2, "failed", "GV101"),  # wrong where it is left out, too
    ],
)
def test_an_optional_tensor(tmp_path, reduction, factor, status, code):
    (tmp_path / "m.py").write_text(MODULE.format(reduction=reduction, factor=factor))
    ran = forked_command.run(["check", "m.py", "--format", "json"], tmp_path)
    (target,) = json.loads(ran.out)["targets"]
    assert target["status"] == status
    assert ran.code == (0 if status == "passed" else 1)
    if code is not None:
        assert code in {finding["code"] for finding in target["findings"]}
    ran = forked_command.run(["init", "m.py", "--stdout"], tmp_path)
    assert "bias: {shape: [m], optional: true}" in ran.out
