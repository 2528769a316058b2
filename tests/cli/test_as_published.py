"""What published files do that tests of one's own seldom do."""

import json

import pytest
import verdicts_only

MODULE = """
import torch
from torch.autograd import Function


class OfItsClass(Function):
    @classmethod
    def forward(cls, ctx, x):
        y = torch.clamp(x, min=0) ** 2
        ctx.save_for_backward(y)
        return y

    @classmethod
    def backward(cls, ctx, g):
        (y,) = ctx.saved_tensors
        return 2 * g * y.sqrt()


class Passed(Function):
    @staticmethod
    def forward(ctx, group, result):
        ctx.save_for_backward(group)
        return result.clone()

    @staticmethod
    def backward(ctx, g):
        (group,) = ctx.saved_tensors
        return torch.zeros_like(group), None


class Scaled(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        (w,) = ctx.saved_tensors
        return g * w, None


class InFloat32(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        out = torch.zeros(x.shape)
        out += g * x.cos()
        return out


class Wrapped(Function):
    @staticmethod
    def forward(ctx, x, magic: float = 1e9):
        ctx.save_for_backward(x)
        ctx.magic = magic
        if not bool((x == magic).any()):
            return x.clone()
        return torch.where(x == magic, x.roll(1, 0) * 0.5 + x.roll(-1, 0) * 0.5, x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x != ctx.magic), None


class Either(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        if x.sum() > 0:
            return x.clone()
        return -x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g if x.sum() > 0 else -g


class ElseNever(Function):
    @staticmethod
    def forward(ctx, x):
        if x.abs().max() < 1e8:
            return x * 2
        else:
            return x * 3

    @staticmethod
    def backward(ctx, g):
        return g * 2


class RareFirst(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        if x.is_cuda:
            return torch.ops.nowhere.fast(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.exp()


class OfBits(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return x.exp() * (g != 0)


class Ones(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return x.exp()
"""


@pytest.fixture(scope="module")
def here(place):
    here = place("cut")
    (here.folder / "published.py").write_text(MODULE)
    return here


@pytest.fixture(scope="module")
def checked(here):
    ran = here("check", "published.py", "--format", "json", **verdicts_only.VARIABLES)
    assert "Traceback" not in ran.err
    return {t["name"]: t for t in json.loads(ran.out)["targets"]}


def messages(target, code):
    return [f["message"] for f in target["findings"] if f["code"] == code]


def test_methods_of_a_class_are_read_as_static_ones(checked):
    assert checked["OfItsClass"]["status"] == "failed"
    assert checked["OfItsClass"]["checks"]["gradcheck"] == "passed"


def test_outputs_that_depend_on_constants_alone_verify_nothing(checked):
    assert (checked["Passed"]["status"], checked["Scaled"]["status"]) == ("inconclusive", "passed")
    (message,) = messages(checked["Passed"], "GV109")
    assert "that `result` is a constant (backward returns None for it)" in message


def test_a_gradient_in_float32_may_be_meant_until_a_spec_says_float64(here, checked):
    assert checked["InFloat32"]["status"] == "inconclusive"
    assert any("guessed that `x` is float64" in m for m in messages(checked["InFloat32"], "GV109"))
    (here.folder / "declared.gradverify.yaml").write_text(
        "gradverify: 1\nmodule: published.py\nfunctions:\n  InFloat32: {inputs: {x: [n]}}\n"
    )
    ran = here("check", "declared.gradverify.yaml", "--format", "json", **verdicts_only.VARIABLES)
    (target,) = json.loads(ran.out)["targets"]
    assert target["status"] == "failed"
    assert messages(target, "GV104")


def test_what_goes_by_where_grad_output_is_zero_is_not_said_to_ignore_it(checked):
    said = "backward ignores grad_output"
    assert any(said in m for m in messages(checked["Ones"], "GV106"))
    assert messages(checked["OfBits"], "GV106") or messages(checked["OfBits"], "GV109")
    assert not any(said in f["message"] for f in checked["OfBits"]["findings"])
