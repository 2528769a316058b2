"""Functions over compiled code, whose source cannot be read: operators of torch's without autograd."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import forked_command

ZOO = Path(__file__).parents[1] / "zoo"

EXTENSION = '''
"""As a compiled extension has it: a backward of its own that autograd cannot see into, in blocks of 128."""

import torch
from torch.autograd import Function

library = torch.library.Library("blocks", "DEF")
library.define("square_backward(Tensor grad, Tensor x, bool tail) -> Tensor")


def square_backward(grad, x, tail):
    gradient = (2 * x * grad).flatten()
    if not tail and gradient.numel() > 128:
        gradient[gradient.numel() // 128 * 128 :] = 0
    return gradient.reshape(x.shape)


library.impl("square_backward", square_backward, "CPU")


class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return torch.ops.blocks.square_backward(grad_output, x, True)


class NoTail(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return torch.ops.blocks.square_backward(grad_output, x, False)


class Detached(Function):
    """Forward alone is compiled: what backward detaches in plain torch is lost by mistake."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.ops.blocks.square_backward(x, x, True)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 4 * x.detach() * grad_output
'''

SPEC = """
gradverify: 1
module: extension.py
functions:
  Square: {inputs: {x: [b, n]}}
  NoTail: {inputs: {x: [b, n]}}
  Detached: {inputs: {x: [b, n]}}
"""

ON_ITS_DEVICE = '''
"""Inputs for what refuses tensors of the CPU, found on a second device; printed with where they are."""

import second_device  # registers it
import sys

import torch
from torch.autograd import Function

from gradverify.verifier.targets.discover import describe_target
from gradverify.verifier.infer.deduce import deduce


class Scale(Function):
    @staticmethod
    def forward(ctx, x, weight):
        if x.device.type == "cpu":
            raise RuntimeError("x must be a CUDA tensor")
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, grad_output):
        x, weight = ctx.saved_tensors
        return grad_output * weight, (grad_output * x).sum(0)


target = describe_target(Scale, "Scale", "Scale", "scale.py")
for device in sys.argv[1:]:
    found = deduce(Scale, target, None, device)
    print(repr(found if isinstance(found, tuple) else sorted(i.name for i in found.inputs)))
'''


def errors_of(folder: Path, *options: str) -> dict[str, tuple[str, set[str]]]:
    done = forked_command.run(["check", "extension.py", *options, "--format", "json"], folder)
    return {
        target["name"]: (
            target["status"],
            {f["code"] for f in target["findings"] if f["severity"] == "error"},
        )
        for target in json.loads(done.out)["targets"]
    }


def test_blocks_of_a_compiled_kernel_are_passed_and_its_cut_graph_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "extension.py").write_text(EXTENSION)
    (tmp_path / "extension.gradverify.yaml").write_text(SPEC)
    found = errors_of(tmp_path)
    assert found == {
        "Square": ("passed", set()),
        "NoTail": ("failed", {"GV101"}),
        "Detached": ("failed", {"GV202"}),
    }


def test_inputs_are_found_on_the_device_that_a_kernel_wants(tmp_path: Path) -> None:
    shutil.copy(ZOO / "devices" / "second_device.py", tmp_path)
    (tmp_path / "found.py").write_text(ON_ITS_DEVICE)
    command = [sys.executable, "found.py", "cpu", "second:0"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    on_cpu, on_second = done.stdout.splitlines()
    assert "x must be a CUDA tensor" in on_cpu
    assert on_second == "['weight', 'x']"
