"""In which precision a target is judged: for each combination of options, whatever is first or selected."""

import json

import pytest
import verdicts_only

MODULE = '''
import time

import torch
from torch.autograd import Function


class Modes(Function):
    """A mode that takes float32 alone, and an exact one whose second derivative is cut."""

    @staticmethod
    def forward(ctx, x, mode):
        ctx.mode = mode
        if mode == "fast" and x.dtype is not torch.float32:
            raise TypeError("fast takes float32")
        y = x.tanh()
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * (1 - (y if ctx.mode == "fast" else x.detach().tanh()) ** 2), None


class Inside(Function):
    """The same by computing in float32 in one mode: nothing raises."""

    @staticmethod
    def forward(ctx, x, mode):
        ctx.mode = mode
        y = x.float().tanh().to(x.dtype) if mode == "fast" else x.tanh()
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        if ctx.mode == "fast":
            return (g.float() * (1 - y.float() ** 2)).to(x.dtype), None
        return g * (1 - x.detach().tanh() ** 2), None


class FromASize(Function):
    """A kernel takes over from some size on, and is wrong."""

    @staticmethod
    def forward(ctx, x):
        if x.numel() > 16 and x.dtype is not torch.float32:
            raise TypeError("the kernel takes float32")
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return (2.1 if x.numel() > 16 else 2) * x * g


class Threshold(Function):
    """Computes in float32: of the smallest case every typical value is zero, which has no digits."""

    @staticmethod
    def forward(ctx, x, lam):
        ctx.save_for_backward(x, lam)
        return (x.float().sign() * (x.float().abs() - lam.float()).clamp(min=0)).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        x, lam = ctx.saved_tensors
        over = g.float() * (x.float().abs() > lam.float())
        return over.to(x.dtype), -(over * x.float().sign()).sum().to(x.dtype)


class Lazy(Function):
    """Its first call takes long, and what it keeps is of the last forward."""

    loaded = False
    mask = None

    @staticmethod
    def forward(ctx, x):
        if not Lazy.loaded:
            time.sleep(0.3)
            Lazy.loaded = True
        if x.dtype is not torch.float32:
            raise TypeError("float32 alone")
        Lazy.mask = x > 0.25
        return torch.where(Lazy.mask, x, 0)

    @staticmethod
    def backward(ctx, g):
        return torch.where(Lazy.mask, g, 0)


def tanh(x, mode):
    return x.tanh()


def masked(x):
    return torch.where(x > 0.25, x, 0)
'''

SPEC = """
gradverify: 1
module: modes.py
functions:
  Modes: {inputs: {x: [n], mode: {choices: [ORDER]}}, reference: "modes:tanh"}
  Inside: {inputs: {x: [n], mode: {choices: [ORDER]}}, reference: "modes:tanh"}
  FromASize: {sizes: {n: [SIZES]}, inputs: {x: [n]}, reference: "torch:square"}
  Threshold: {inputs: {x: {shape: [1], range: [-30, 30]}, lam: {shape: [], range: [2, 4]}}}
  Lazy: {inputs: {x: [n]}, reference: "modes:masked"}
"""


@pytest.fixture
def judged(place):
    def run(target, *options, order="fast, exact", sizes="4, 32"):
        here = place("screens")
        (here.folder / "modes.py").write_text(MODULE)
        (here.folder / "modes.gradverify.yaml").write_text(
            SPEC.replace("ORDER", order).replace("SIZES", sizes)
        )
        ran = here("check", f"modes.py::{target}", "--format", "json", *options, **verdicts_only.VARIABLES)
        (found,) = json.loads(ran.out)["targets"]
        return found

    return run


def errors(target):
    return {(f["code"], f["case"]["id"]) for f in target["findings"] if f["severity"] == "error"}


@pytest.mark.parametrize("order", ["fast, exact", "exact, fast"])
@pytest.mark.parametrize("name", ["Modes", "Inside"])
def test_a_mode_in_float32_does_not_hide_what_is_wrong_in_another(judged, name, order):
    found = judged(name, order=order)
    assert errors(found) == {("GV202", "mode=exact")}


def test_a_case_alone_is_judged_as_it_is_among_the_others(judged):
    assert errors(judged("Modes[mode=exact]")) == {("GV202", "mode=exact")}
    alone = judged("Modes[mode=fast]")
    assert alone["status"] == "passed"
    assert alone["checks"]["precision"] == "passed"
    assert alone["checks"]["gradcheck"] == "not-run"


def test_what_is_selected_does_not_decide(judged):
    found = judged("Modes[mode=fast]", "--select", "GV101")
    assert found["status"] == "passed"
    assert found["checks"]["gradcheck"] == "not-run"


@pytest.mark.parametrize("sizes", ["4, 32", "32, 4"])
def test_a_kernel_that_takes_over_from_a_size_on_is_judged_natively(judged, sizes):
    found = judged("FromASize", sizes=sizes)
    assert found["status"] == "failed"
    assert {case for _, case in errors(found)} == {"n=32"}


def test_where_values_have_no_digits_other_declared_ones_decide(judged):
    assert judged("Threshold")["status"] == "passed"


def test_no_clock_decides_what_is_asked(judged):
    assert ("GV408", "base") in errors(judged("Lazy"))
