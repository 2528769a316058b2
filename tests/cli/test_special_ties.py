"""Ties at declared special values, where values alone tell nothing of a gradient that is right elsewhere."""

import json

import forked_command
import pytest
from zoo import ZOO

SORTED = """
import numpy as np
import torch
from torch.autograd import Function


class Sorted(Function):
    @staticmethod
    def forward(ctx, x):
        entries = x.detach().numpy()
        ctx.save_for_backward(torch.from_numpy(np.argsort(entries, axis=-1, kind="stable")))
        return torch.from_numpy(np.sort(entries, axis=-1))

    @staticmethod
    def backward(ctx, g):
        (order,) = ctx.saved_tensors
        return torch.zeros_like(g).scatter(-1, order, g)
"""


def test_what_nobody_can_measure_at_ties_is_no_open_question_where_the_rest_is_right(tmp_path):
    (tmp_path / "ties.py").write_text(SORTED)
    entry = "{sizes: {n: [4, 3]}, inputs: {x: {shape: [3, n], special: [0.0, 1.0]}}}"
    (tmp_path / "ties.gradverify.yaml").write_text(f"module: ties.py\nfunctions:\n  Sorted: {entry}\n")
    done = forked_command.run(["check", "ties.py", "--seed", "4", "--format", "json"], tmp_path)
    (target,) = json.loads(done.out)["targets"]
    assert (target["status"], target["checks"]["gradcheck"]) == ("passed", "passed")
    assert target["not_judged"] > 0


def of_the_zoo(target, seed):
    done = forked_command.run(["check", target, "--seed", seed, "--format", "json"], ZOO / "hidden")
    return json.loads(done.out)["targets"][0]


def test_nan_at_a_declared_zero_shows_in_the_few_digits_of_float32():
    found = of_the_zoo("wrong.py::SincInSingle", "2")["findings"]
    assert "GV108" in {f["code"] for f in found if f["severity"] == "error"}


def test_derived_that_closes_beside_the_limit_stays_a_witness():
    assert of_the_zoo("right.py::LogProbabilities", "1")["swept"]["not_past"] == []


NOTING = """
import pathlib

import torch
from torch.autograd import Function


class Noting(Function):
    @staticmethod
    def forward(ctx, x):
        if bool((x < -0.0001).any()):
            pathlib.Path(__file__).with_name("beyond").touch()
        ctx.save_for_backward(x)
        return torch.where(x == 0, 0.0, x * x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x
"""


@pytest.mark.parametrize("slope", ["2 * g * x", "3 * g * x"], ids=["right", "wrong, with its cause"])
def test_no_call_leaves_the_declared_range(tmp_path, slope):
    (tmp_path / "m.py").write_text(NOTING.replace("2 * g * x", slope))
    inputs = "{x: {shape: [4, 3], range: [-0.0001, 9]}}"
    spec = f"gradverify: 1\nmodule: m.py\nfunctions: {{Noting: {{inputs: {inputs}}}}}\n"
    (tmp_path / "m.gradverify.yaml").write_text(spec)
    forked_command.run(["check", "m.py"], tmp_path)
    assert not (tmp_path / "beyond").exists()
