"""A target whose calls take long: what is certain when its time is out is its verdict."""

import json

import extent
import pytest

MODULE = """
import time

import torch


def slow():
    time.sleep(0.25)


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        slow()
        ctx.save_for_backward(x)
        return x.sin().cumsum(-1)

    @staticmethod
    def backward(ctx, grad_output):
        slow()
        (x,) = ctx.saved_tensors
        return FACTOR * grad_output.flip(-1).cumsum(-1).flip(-1) * x.cos()
"""


@pytest.mark.parametrize(
    ("factor", "status", "code"),
    [("2", "failed", 1), *extent.extent([], [("1", "unchecked", 1)])],
)
def test_the_verdict_of_a_slow_target_when_its_time_is_out(place, factor, status, code):
    here = place("screens")
    (here.folder / "slow.py").write_text(MODULE.replace("FACTOR", factor))
    (here.folder / "slow.gradverify.yaml").write_text(
        "gradverify: 1\nmodule: slow.py\nfunctions:\n  Slow: {inputs: {x: [6, 8]}}\n"
    )
    ran = here("check", "slow.py", "--timeout", "12", "--format", "json")
    (target,) = json.loads(ran.out)["targets"]
    found = {f["code"]: f for f in target["findings"]}
    assert ran.code == code
    assert target["status"] == status
    assert "GV902" in found
    assert ("GV101" in found) is (factor == "2")
    if factor == "2":
        assert "two random directions" in found["GV101"]["message"]
        assert found["GV101"]["case"]["id"] == "base"
