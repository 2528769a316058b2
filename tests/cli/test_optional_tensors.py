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


REQUIRED = """

class Shift{factor}(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, shift):
        ctx.save_for_backward(x, scale)
        ctx.has_shift = shift is not None
        y = x * scale
        return y + shift if shift is not None else y

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        return g * scale, g * x if ctx.has_shift else {factor} * g * x, g if ctx.has_shift else None


class Masked{factor}(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, mask):
        ctx.save_for_backward(x, mask)
        return x * x if mask is None else (x * x).masked_fill(mask == 0, 0.0)

    @staticmethod
    def backward(ctx, g):
        x, mask = ctx.saved_tensors
        return {factor} * 2 * g * x if mask is None else (2 * g * x).masked_fill(mask == 0, 0.0), None


class Scaled{factor}(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return 3 * x if alpha is None else x * alpha

    @staticmethod
    def backward(ctx, g):
        return {factor} * 3 * g if ctx.alpha is None else g * ctx.alpha, None
"""

REFUSING = """

class Refusing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, p):
        if w is None or p is None:
            raise ValueError("both are needed")
        ctx.save_for_backward(x, w)
        ctx.p = p
        return x * w * p

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w * ctx.p, g * x * ctx.p, None


class Unguarded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.given = w is not None
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, g * x
"""


def test_what_forward_compares_with_none_is_tried_as_none(tmp_path):
    """No default says so, but a branch for None is there to be called."""
    written = HEAD + REQUIRED.format(factor=1) + REQUIRED.format(factor=2) + REFUSING
    (tmp_path / "m.py").write_text(written)
    asked = ("check", "m.py", "--format", "json")
    ran = forked_command.run(asked, tmp_path, forked_command.plain_environment(**verdicts_only.VARIABLES))
    targets = {target["name"]: target for target in json.loads(ran.out)["targets"]}
    right = {name for name, target in targets.items() if target["status"] == "passed"}
    assert right == {"Shift1", "Masked1", "Scaled1", "Refusing", "Unguarded"}
    # What was guessed beside None is named where it may be why.
    assert targets["Shift2"]["status"] == "failed"
    assert {targets[name]["status"] for name in ("Masked2", "Scaled2")} <= {"failed", "inconclusive"}


WEIGHED = """

class Weighed{divisor}(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target, weight=None):
        logp = torch.log_softmax(logits, dim=-1)
        of_classes = weight if weight is not None else logits.new_ones(logits.shape[1])
        of_rows = of_classes[target]
        ctx.save_for_backward(logp, target, of_rows)
        return -(of_rows * logp.gather(1, target[:, None])[:, 0]).sum() / of_rows.sum()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        logp, target, of_rows = ctx.saved_tensors
        p = logp.exp()
        p = p.scatter_add(1, target[:, None], -torch.ones_like(p[:, :1]))
        divisor = of_rows.sum() if "{divisor}" == "Sum" else len(target)
        return g * p * of_rows[:, None] / divisor, None, None
"""


def test_an_optional_tensor_without_a_gradient(tmp_path):
    """Weights of classes, which no gradient is meant for: without them both are right."""
    (tmp_path / "m.py").write_text(HEAD + "".join(WEIGHED.format(divisor=d) for d in ("Sum", "Count")))
    ran = forked_command.run(["check", "m.py", "--format", "json"], tmp_path)
    targets = {target["name"]: target for target in json.loads(ran.out)["targets"]}
    assert {name: target["status"] for name, target in targets.items()} == {
        "WeighedSum": "passed",
        "WeighedCount": "inconclusive",
    }
