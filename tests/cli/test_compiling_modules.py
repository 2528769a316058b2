"""Functions are tried under torch.compile where that is selected."""

import json

MODULE = """\
import torch


class DoubledWhenCompiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos() * (2 if torch.compiler.is_compiling() else 1)


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()
"""

SPEC = """\
gradverify: 1
module: m.py
functions:
  DoubledWhenCompiled: {inputs: {x: [n]}}
  Sine: {inputs: {x: [n]}}
"""


def targets_of(place, *options):
    here = place()
    (here.folder / "m.py").write_text(MODULE)
    (here.folder / "m.gradverify.yaml").write_text(SPEC)
    ran = here("check", "m.py", "--format", "json", *options)
    return {target["name"]: target for target in json.loads(ran.out)["targets"]}


def test_a_module_is_tried_compiled_where_that_is_selected(place):
    found = targets_of(place, "--select", "GV1,GV503")
    wrong, right = found["DoubledWhenCompiled"], found["Sine"]
    assert {f["code"] for f in wrong["findings"] if f["severity"] == "error"} == {"GV503"}
    assert (right["status"], right["capabilities"]["compile"]) == ("passed", "yes")
    assert not any("torch.compile" in phrase for phrase in right.get("left_out", []))


def test_else_it_is_not(place):
    found = targets_of(place)
    assert {t["status"] for t in found.values()} == {"passed"}
