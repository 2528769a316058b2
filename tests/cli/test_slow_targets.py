"""A target whose calls take long: it is unchecked when its time is out, and told how long a call took."""

import json

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
        return 2 * grad_output.flip(-1).cumsum(-1).flip(-1) * x.cos()
"""


def test_a_slow_target_is_unchecked_when_its_time_is_out(place):
    here = place("screens")
    (here.folder / "slow.py").write_text(MODULE)
    (here.folder / "slow.gradverify.yaml").write_text(
        "gradverify: 1\nmodule: slow.py\nfunctions:\n  Slow: {inputs: {x: [6, 8]}}\n"
    )
    ran = here("check", "slow.py", "--timeout", "4", "--format", "json")
    (target,) = json.loads(ran.out)["targets"]
    (finding,) = target["findings"]
    assert (ran.code, target["status"], finding["code"]) == (1, "unchecked", "GV902")
    assert "calls of forward and backward took" in finding["hint"]
