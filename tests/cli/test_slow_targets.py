"""A target whose calls take long: it is unchecked when its time is out, and told how long a call took."""

import json

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


LAZY = """
import time

import numpy as np
import torch


def masked(x):
    return torch.where(x > 0.25, x, torch.zeros_like(x))


class Stale(torch.autograd.Function):
    ready = False
    mask = None

    @staticmethod
    def forward(ctx, x):
        load(Stale, "forward")
        if x.dtype != torch.float32:
            raise TypeError("float32 only")
        ctx.mask = Stale.mask = x.detach().numpy() > 0.25
        return torch.from_numpy(np.where(Stale.mask, x.detach().numpy(), np.float32(0)))

    @staticmethod
    def backward(ctx, g):
        load(Stale, "backward")
        return torch.from_numpy(np.where(OWNER.mask, g.contiguous().numpy(), np.float32(0)))


def load(owner, where):
    if where == WHERE and not owner.ready:
        time.sleep(1.2)  # load the shared library
        owner.ready = True
"""


@pytest.mark.parametrize(
    ("where", "owner", "status"),
    [("forward", "Stale", "failed"), ("backward", "Stale", "failed"), ("forward", "ctx", "passed")],
)
def test_a_slow_first_call_leaves_nothing_out(place, where, owner, status):
    here = place("screens")
    (here.folder / "lazy.py").write_text(LAZY.replace("WHERE", repr(where)).replace("OWNER", owner))
    (here.folder / "lazy.gradverify.yaml").write_text(
        'gradverify: 1\nmodule: lazy.py\nfunctions:\n  Stale: {inputs: {x: [n]}, reference: "lazy:masked"}\n'
    )
    (target,) = json.loads(here("check", "lazy.py", "--format", "json").out)["targets"]
    assert target["status"] == status
    assert ("GV408" in {f["code"] for f in target["findings"]}) is (status == "failed")
