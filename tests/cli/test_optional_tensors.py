"""A parameter that defaults to None is tried as a tensor too: else its branch would pass unverified."""

from __future__ import annotations

import json

import forked_command
import pytest
import verdicts_only

HEAD = "import torch\n"

LINEAR = """

class {name}(torch.autograd.Function):
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

LINEARS = {
    "Right": ("sum", 1, "passed", None),
    "WrongWhereGiven": ("mean", 1, "inconclusive", "GV109"),  # the shape of what is given was guessed
    "WrongWhereLeftOut": ("sum", 2, "failed", "GV101"),
}
"""How it sums for the bias, the factor of the other gradient, and the status and code."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("optional")
    written = (LINEAR.format(name=n, reduction=r, factor=f) for n, (r, f, *_) in LINEARS.items())
    (made / "m.py").write_text(HEAD + "".join(written))
    return made


def test_an_optional_tensor(folder):
    asked = ("check", "m.py", "--format", "json")
    ran = forked_command.run(asked, folder, forked_command.plain_environment(**verdicts_only.VARIABLES))
    targets = {target["name"]: target for target in json.loads(ran.out)["targets"]}
    assert {name: target["status"] for name, target in targets.items()} == {
        name: status for name, (*_, status, _) in LINEARS.items()
    }
    for name, (*_, code) in LINEARS.items():
        codes = {finding["code"] for finding in targets[name]["findings"]}
        assert codes >= ({code} - {None})


def test_what_is_drafted_says_so(folder):
    ran = forked_command.run(["init", "m.py", "--stdout"], folder)
    assert ran.out.count("bias: {shape: [m], optional: true}") == len(LINEARS)
