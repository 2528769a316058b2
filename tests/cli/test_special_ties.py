"""Ties at declared special values, where values alone tell nothing of a gradient that is right elsewhere."""

import json

import forked_command

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
