"""Sentences of the report that were false of some Function: each from the fact it is about."""

from __future__ import annotations

import json

import forked_command
import pytest

HEAD = "import torch\nfrom torch.autograd import Function\n\n\n"

IDENTITY = """
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output
"""

CASES = {
    "an exception that speaks of cuda where no GPU is involved": (
        "class F(Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        raise Exception('cuda rng state noise is not added')\n" + IDENTITY,
        "What it raises speaks of a GPU",
        "It takes tensors on a GPU alone",
    ),
    "an exception that hides another one": (
        "class F(Function):\n    @staticmethod\n    def forward(ctx, x):\n        try:\n"
        "            return x @ missing\n        except NameError:\n"
        "            raise RuntimeError('x is not positive definite')\n" + IDENTITY,
        "(after NameError: name 'missing' is not defined)",
        "nothing at all",
    ),
    "a forward that returns nothing where no gradient is asked for": (
        "class F(Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        return x.clone() if ctx.needs_input_grad[0] else None\n" + IDENTITY,
        "under torch.no_grad() forward returned None, before a tensor of shape",
        "forward raised",
    ),
    "a module with an attribute called buffers": (
        (
            "class F(Function):\n    @staticmethod\n    def forward(ctx, x, work):\n"
            "        return x + work\n\n    @staticmethod\n"
            "    def backward(ctx, grad_output):\n        return grad_output, None\n\n\n"
            "class Layer(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.register_buffer('work', torch.ones(1))\n        self.buffers = (self.work,)\n\n"
            "    def forward(self, x):\n        return F.apply(x, self.buffers[0])\n"
        ),
        '"name": "Layer"',
        "could not be built",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_said_is_true(tmp_path, name):
    text, said, unsaid = CASES[name]
    (tmp_path / "m.py").write_text(HEAD + text)
    if "Layer" in text:
        (tmp_path / "m.gradverify.yaml").write_text(
            "gradverify: 1\nmodule: m.py\nfunctions:\n  Layer: {init: {}, inputs: {x: [2, 3]}}\n"
        )
    done = forked_command.run(["check", "m.py", "--effort", "quick", "--format", "json"], tmp_path)
    report = json.dumps(json.loads(done.out))
    assert said in report, done.out + done.err
    assert unsaid not in report


def test_where_inference_ends_the_users_own_test_is_what_to_record(tmp_path):
    (tmp_path / "m.py").write_text(
        HEAD + "class F(Function):\n    @staticmethod\n    def forward(ctx, x, table):\n"
        "        raise ValueError('the table is empty')\n" + IDENTITY
    )
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_m.py").write_text("from m import F\n")
    done = forked_command.run(["check", "m.py", "--format", "json"], tmp_path)
    (finding,) = json.loads(done.out)["targets"][0]["findings"]
    assert "`gradverify record -o m.gradverify.yaml -- pytest tests/test_m.py`" in finding["hint"]


def test_no_inputs_are_asked_for_where_torch_cannot_run_the_style(tmp_path):
    (tmp_path / "m.py").write_text(
        HEAD + "class F(Function):\n    def __init__(self, factor=2.0):\n        super().__init__()\n"
        "        self.factor = factor\n\n    def forward(self, x):\n        return x * self.factor\n\n"
        "    def backward(self, grad_output):\n        return grad_output * self.factor\n"
    )
    done = forked_command.run(["check", "m.py", "--format", "json"], tmp_path)
    finding, *_ = json.loads(done.out)["targets"][0]["findings"]
    assert finding["code"] == "GV001"
    assert "since 1.5" in finding["hint"]
    assert "spec" not in finding["hint"]
