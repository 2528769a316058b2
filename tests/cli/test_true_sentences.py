"""Sentences of the report that were false of some Function: each from the fact it is about."""

from __future__ import annotations

import json
from importlib.metadata import version

import forked_command
import pytest
import torch

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
    "an operator whose kernels are for a GPU": (
        "library = torch.library.Library('true_sentences', 'DEF')\n"
        "library.define('double(Tensor x) -> Tensor')\n"
        "library.impl('double', lambda x: 2 * x, 'CUDA')\n\n\n"
        "class F(Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        return torch.ops.true_sentences.double(x)\n" + IDENTITY,
        "It needs a GPU, and there is none here. `--device cuda`",
        "no kernel here",
    ),
    "an author who quotes what torch says without a GPU": (
        "class F(Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        raise ValueError('No CUDA GPUs are available')\n" + IDENTITY,
        "What it raises speaks of a GPU",
        "It needs a GPU",
    ),
    "an assertion that speaks of a GPU in its line alone": (
        "class F(Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        assert x.is_cuda\n        return x.clone()\n" + IDENTITY,
        "The line that raises it speaks of a GPU",
        "What it raises speaks",
    ),
    "a class whose decorator gives back something else": (
        "def traceable(cls):\n    class Holder:\n        apply = staticmethod(lambda *a: cls.apply(*a))\n\n"
        "    return Holder\n\n\n"
        "@traceable\nclass F(Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        return x.clone()\n" + IDENTITY,
        "its own name stands for something else there",
        "defined while a function runs",
    ),
    "an exception about a hip": (
        "class F(Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        raise ValueError('the hip angle must be below pi')\n" + IDENTITY,
        "hip angle",
        "speaks of a GPU",
    ),
    "a module that wants a GPU as it is imported": (
        "TABLE = torch.zeros(3, device='cuda')\n\n\nclass F(Function):\n    @staticmethod\n"
        "    def forward(ctx, x):\n        return x.clone()\n" + IDENTITY,
        "It needs a GPU, and there is none here. `--device cuda` verifies it where there is one.",
        "in a spec skips it",
    ),
    "an import of what an installed package does not have": (
        "class F(Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        from math import tauu\n        return x * tauu\n" + IDENTITY,
        "`math` has no `tauu` here: it is misspelt, or was written for another version.",
        "Install it",
    ),
    "a name that an import binds in another function": (
        (
            "def area():\n    import math\n    return math.pi\n\n\n"
            "class F(Function):\n    @staticmethod\n    def forward(ctx, x):\n        return x.clone()\n\n"
            "    @staticmethod\n    def backward(ctx, grad_output):\n"
            "        return grad_output * math.cos(0.0)\n"
        ),
        '"code": "GV102"',
        "Install it",
    ),
    "a package that is imported for type checkers alone": (
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import numpy as np\n\n\n"
        "class F(Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        return x * np.pi\n" + IDENTITY,
        "Nothing has bound `np` here: its import (m.py:8) did not run, or failed.",
        "Install it",
    ),
    "an alias that NumPy 2 removed, in a call": (
        "import numpy as np\n\n\nclass F(Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        return x * float(np.float_(2))\n" + IDENTITY,
        "Use `np.float64` instead.",
        "misspelt",
    ),
    "an alias that NumPy 2 removed, at import": (
        "import numpy as np\n\nHALF = np.float_(0.5)\n\n\nclass F(Function):\n    @staticmethod\n"
        "    def forward(ctx, x):\n        return x * HALF\n" + IDENTITY,
        "Use `np.float64` instead.",
        "o inputs help",
    ),
    "an author who removed something": (
        "class F(Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        raise RuntimeError('This mode is deprecated since 3.0 and is now removed')\n" + IDENTITY,
        "is now removed",
        "removed from torch",
    ),
    "a backward that uses bits of grad_output, and no cast": (
        (
            "class F(Function):\n    @staticmethod\n    def forward(ctx, x):\n        return 3.0 * x\n\n"
            "    @staticmethod\n    def backward(ctx, grad_output):\n"
            "        bits = grad_output.contiguous().view(torch.int64) & ~0xFFFFFFFFFF\n"
            "        return 3.0 * bits.view(torch.float64)\n"
        ),
        "it is not linear in grad_output",
        "backward rounds grad_output to",
    ),
    "a backward that casts grad_output": (
        (
            "class F(Function):\n    @staticmethod\n    def forward(ctx, x):\n        return 3.0 * x\n\n"
            "    @staticmethod\n    def backward(ctx, grad_output):\n"
            "        return 3.0 * grad_output.half().double()\n"
        ),
        "numbers go through 16 bits or fewer on the way",
        "their bits",
    ),
    "a gradient in float32, which may hold all of it": (
        (
            "class F(Function):\n    @staticmethod\n    def forward(ctx, x):\n        ctx.shape = x.shape\n"
            "        return x.sum()\n\n    @staticmethod\n    def backward(ctx, grad_output):\n"
            "        return grad_output.float().expand(ctx.shape)\n"
        ),
        "the engine casts it",
        "its digits are lost",
    ),
    "a line that unpacks some of the saved tensors": (
        (
            "def scalars(saved):\n    return [t for t in saved if t.dim() == 0]\n\n\n"
            "class F(Function):\n    @staticmethod\n    def forward(ctx, x):\n"
            "        ctx.save_for_backward(x)\n        return 2.0 * x\n\n"
            "    @staticmethod\n    def backward(ctx, grad_output):\n"
            "        a, b = scalars(ctx.saved_tensors)\n        return 2.0 * grad_output\n"
        ),
        "not enough values to unpack (expected 2, got 0)",
        "no saved tensors",
    ),
    "a forward that saves something in other calls": (
        (
            "class F(Function):\n    @staticmethod\n    def forward(ctx, x):\n        if x.sum() > 1e9:\n"
            "            ctx.save_for_backward(x)\n        return 2.0 * x\n\n"
            "    @staticmethod\n    def backward(ctx, grad_output):\n"
            "        (x,) = ctx.saved_tensors\n        return 2.0 * grad_output\n"
        ),
        "Hand as many tensors to ctx.save_for_backward",
        "never calls",
    ),
    "a double backward that fails and does not say that it is not meant": (
        (
            "class Inner(Function):\n    @staticmethod\n    def forward(ctx, g, x):\n"
            "        return 2.0 * g * x\n\n    @staticmethod\n    def backward(ctx, gg):\n"
            "        return gg @ torch.ones(77, 3, dtype=gg.dtype), None\n\n\n"
            "class F(Function):\n    @staticmethod\n    def forward(ctx, x):\n"
            "        ctx.save_for_backward(x)\n        return x**2\n\n"
            "    @staticmethod\n    def backward(ctx, grad_output):\n"
            "        return Inner.apply(grad_output, *ctx.saved_tensors)\n"
        ),
        "the double backward raises RuntimeError",
        "explicit error",
    ),
    "a forward that counts its calls": (
        "class F(Function):\n    calls = 0\n\n    @staticmethod\n    def forward(ctx, x):\n"
        "        F.calls += 1\n        return x * (1.0 + 0.001 * F.calls)\n" + IDENTITY,
        "forward gives other values at each call",
        "stochastic",
    ),
    "a second derivative by a backward that counts its calls": (
        (
            "class F(Function):\n    calls = 0\n\n    @staticmethod\n    def forward(ctx, x):\n"
            "        return 2.0 * x\n\n    @staticmethod\n    def backward(ctx, grad_output):\n"
            "        F.calls += 1\n        return grad_output * (2.0 + 0.01 * (F.calls % 5))\n"
        ),
        "it gives another gradient each time",
        "forward gives other values",
    ),
    "a backward that divides by what a loss of one output sends for the other": (
        (
            "class F(Function):\n    @staticmethod\n    def forward(ctx, x):\n"
            "        return 2.0 * x, 3.0 * x\n\n    @staticmethod\n    def backward(ctx, g, h):\n"
            "        size = float(h.abs().max())\n        return (2.0 * g + 3.0 * h) * (1.0 / size * size)\n"
        ),
        "backward raised ZeroDivisionError",
        "set_materialize_grads",
    ),
    "a gradient that is dropped where that of another output is undefined": (
        (
            "class F(Function):\n    @staticmethod\n    def forward(ctx, x):\n"
            "        ctx.set_materialize_grads(False)\n        return 2.0 * x, 3.0 * x\n\n"
            "    @staticmethod\n    def backward(ctx, g, h):\n"
            "        grad = None if g is None else 2.0 * g\n"
            "        return grad if h is None or grad is None else grad + 3.0 * h\n"
        ),
        "is wrong when grad_output of output 0 is undefined (None)",
        "clamp, sign, threshold",
    ),
    "a gradient that is divided by how many outputs a loss uses": (
        (
            "class F(Function):\n    @staticmethod\n    def forward(ctx, x):\n"
            "        ctx.set_materialize_grads(False)\n        return 2.0 * x, 3.0 * x\n\n"
            "    @staticmethod\n    def backward(ctx, g, h):\n"
            "        given = [k * one for k, one in ((2.0, g), (3.0, h)) if one is not None]\n"
            "        return 2.0 * sum(given) / len(given)\n"
        ),
        "is wrong when grad_output of output 0 is undefined (None)",
        "clamp, sign, threshold",
    ),
    "a process that code aborts": (
        (
            "import os\n\n\nclass F(Function):\n    @staticmethod\n    def forward(ctx, x):\n"
            "        return 2.0 * x\n\n    @staticmethod\n    def backward(ctx, grad_output):\n"
            "        os.abort()\n"
        ),
        "Compiled code gave up",
        "out of bounds",
    ),
    "a forward that oscillates, and does not jump": (
        (
            "class F(Function):\n    @staticmethod\n    def forward(ctx, x):\n"
            "        ctx.save_for_backward(x)\n        return torch.sin(1e11 * x)\n\n"
            "    @staticmethod\n    def backward(ctx, grad_output):\n"
            "        (x,) = ctx.saved_tensors\n        return grad_output * 1e11 * torch.cos(1e11 * x)\n"
        ),
        '"status": "passed"',
        "forward jumps by",
    ),
    "a forward that oscillates, and has a slope": (
        (
            "class F(Function):\n    @staticmethod\n    def forward(ctx, x):\n"
            "        ctx.save_for_backward(x)\n        return torch.sin(3e7 * x)\n\n"
            "    @staticmethod\n    def backward(ctx, grad_output):\n"
            "        (x,) = ctx.saved_tensors\n        return grad_output * 3e7 * torch.cos(3e7 * x)\n"
        ),
        '"status": "passed"',
        "without limit",
    ),
    "a backward that has torch differentiate something else": (
        (
            "class F(Function):\n    @staticmethod\n    def forward(ctx, x):\n"
            "        ctx.save_for_backward(x)\n        return torch.sinh(x)\n\n"
            "    @staticmethod\n    def backward(ctx, grad_output):\n        (x,) = ctx.saved_tensors\n"
            "        with torch.enable_grad():\n            y = x.detach().requires_grad_()\n"
            "            return torch.autograd.grad(torch.tanh(y), y, grad_output)[0]\n"
        ),
        "backward has torch differentiate what it computes (`torch.autograd.grad`)",
        "That is right",
    ),
    "a tensor of the module that something is added to": (
        (
            "OFFSET = torch.ones(1, dtype=torch.float64)\n\n\nclass F(Function):\n    @staticmethod\n"
            "    def forward(ctx, x):\n        return OFFSET.add(2.0 * x)\n\n"
            "    @staticmethod\n    def backward(ctx, grad_output):\n        return 2.0 * grad_output\n"
        ),
        '"status": "passed"',
        "writes `OFFSET`",
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
        '"status": "passed"',
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


FOLDERS = {name: f"case_{number}" for number, name in enumerate(CASES)}


def specified(text):
    """What the spec of a case says; empty where its inputs are inferred."""
    if "os.abort" in text or "torch.sin" in text:  # what is guessed may be why, and other guesses are tried
        return "F: {inputs: {x: [3]}}"
    return "Layer: {init: {}, inputs: {x: [2, 3]}}" if "Layer" in text else ""


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """By name, what one command says of the file of each case."""
    here = tmp_path_factory.mktemp("sentences")
    for name, folder in FOLDERS.items():
        text, *_ = CASES[name]
        (here / folder).mkdir()
        (here / folder / "m.py").write_text(HEAD + text)
        if entry := specified(text):
            (here / folder / "m.gradverify.yaml").write_text(
                f"gradverify: 1\nmodule: m.py\nfunctions:\n  {entry}\n"
            )
    files = [f"{folder}/m.py" for folder in FOLDERS.values()]
    done = forked_command.run(["check", *files, "--effort", "quick", "--format", "json"], here)
    report = json.loads(done.out)
    told = [*report["targets"], *report["errors"]]
    return {
        name: json.dumps([one for one in told if one["file"] == f"{folder}/m.py"]).replace(f"{folder}/", "")
        for name, folder in FOLDERS.items()
    }


@pytest.mark.parametrize("name", CASES)
def test_what_is_said_is_true(reports, name):
    text, said, unsaid = CASES[name]
    if "none here" in said and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    if "np.float_" in text and not version("numpy").startswith("2."):
        pytest.skip("this NumPy has the alias")
    assert said in reports[name]
    assert unsaid not in reports[name]


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


@pytest.mark.parametrize("program", ["F.apply(x, x)", "module(x)"])
def test_where_guesses_leave_it_open_the_program_that_calls_it_is_what_to_record(tmp_path, program):
    (tmp_path / "m.py").write_text(
        HEAD + "class F(Function):\n    @staticmethod\n    def forward(ctx, x, w):\n"
        "        ctx.save_for_backward(x, w)\n        return x @ w\n\n"
        "    @staticmethod\n    def backward(ctx, g):\n        x, w = ctx.saved_tensors\n"
        "        return g @ w, x.t() @ g\n\n\ndef module(x):\n    return F.apply(x, x)\n\n\n"
        f"if __name__ == '__main__':\n    x = torch.ones(3, 3, requires_grad=True)\n    {program}\n"
        "\n\nclass G(F):\n    pass\n"
    )
    done = forked_command.run(["check", "m.py", "--format", "json"], tmp_path)
    hints = {t["name"]: t["findings"][0]["hint"] for t in json.loads(done.out)["targets"]}
    assert "`gradverify record -o m.gradverify.yaml -- python m.py` writes a spec from calls" in hints["F"]
    assert "record" not in hints["G"]


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


DOUBLED = '''
import numpy as np


class F(Function):
    """Every entry is twice as large as it should be, the tiny ones, too."""

    @staticmethod
    def forward(ctx, x):
        if x.dtype is not torch.float32:
            raise TypeError("float32 alone")
        e = np.exp(-6 * x.detach().numpy())
        ctx.save_for_backward(torch.from_numpy(e / e.sum()))
        return torch.from_numpy(np.asarray(-np.log(e.sum()) / 6))

    @staticmethod
    def backward(ctx, g):
        (w,) = ctx.saved_tensors
        return 2 * g * w
'''


def test_nothing_is_left_out_where_every_entry_is_too_large(tmp_path):
    (tmp_path / "m.py").write_text(HEAD + DOUBLED)
    (tmp_path / "m.gradverify.yaml").write_text(
        "gradverify: 1\nmodule: m.py\nfunctions:\n  F: {inputs: {x: {shape: [n], domain: positive}}}\n"
    )
    document = json.loads(forked_command.run(["check", "m.py", "--format", "json"], tmp_path).out)
    (found,) = [f for f in document["targets"][0]["findings"] if f["severity"] == "error"]
    assert found["code"] == "GV101"
    assert "leaves entries out" not in (found["hint"] or "")
