"""Failures are reported at the smallest sizes and plainest values that show them in the same way."""

from __future__ import annotations

import json

import forked_command
import pytest

MODULE = """
import os

import torch
from torch.autograd import Function


class Scaled(Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return 3 * g * w, (g * x).sum(0)


class Tail(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        gx = g * x.cos()
        gx[4:] = 0
        return gx


class Mean(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.mean(0)

    @staticmethod
    def backward(ctx, g):
        return g.expand(ctx.shape)


class OnlyLarge(Function):
    @staticmethod
    def forward(ctx, x):
        if x.shape[0] < 3:
            os._exit(7)
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 5 * g * x


class Normalised(Function):
    @staticmethod
    def forward(ctx, x):
        centred = x - x.mean(-1, keepdim=True)
        rstd = (centred.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        ctx.save_for_backward(centred * rstd, rstd)
        return centred * rstd

    @staticmethod
    def backward(ctx, g):
        y, rstd = ctx.saved_tensors
        g = g - g.mean(-1, keepdim=True)
        return 2 * rstd * (g - y * (g * y).mean(-1, keepdim=True))  # of two numbers, y is -1 and 1


class Unit(Function):
    @staticmethod
    def forward(ctx, u):
        ctx.save_for_backward(u)
        return u**2

    @staticmethod
    def backward(ctx, g):
        (u,) = ctx.saved_tensors
        return g * u


class TwiceOrOnce(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.long = len(x) > 1
        ctx.shape = x.shape
        return 2 * x.sum() if ctx.long else x.sum()

    @staticmethod
    def backward(ctx, g):
        k = 4 if ctx.long else 2
        return (g * k).expand(ctx.shape)
"""
SPEC = """
gradverify: 1
module: m.py
functions:
  Scaled: {sizes: {b: 5, d: 6}, inputs: {x: [b, d], w: [d]}}
  Tail: {sizes: {n: 7}, inputs: {x: [n]}}
  Mean: {sizes: {b: [4, 3], d: 2}, inputs: {x: [b, d]}}
  OnlyLarge: {sizes: {n: 4}, inputs: {x: [n]}}
  Normalised: {inputs: {x: [b, d]}, sizes: {b: 3, d: 6}, ignore: {GV2: "the first order alone"}}
  TwiceOrOnce: {inputs: {x: [n]}}
  Unit: {sizes: {b: 4, d: 3}, inputs: {u: {shape: [b, d], structure: unit-norm}}}
"""


def check(folder, *words):
    ran = forked_command.run(["check", *words, "--format", "json"], folder)
    assert ran.code == 1, ran.err
    return {t["name"]: t for t in json.loads(ran.out)["targets"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    here = tmp_path_factory.mktemp("shrinking")
    (here / "m.py").write_text(MODULE)
    (here / "m.gradverify.yaml").write_text(SPEC)
    return here


@pytest.fixture(scope="module")
def found(folder):
    return check(folder, "m.py")


def only(target):
    (finding,) = [f for f in target["findings"] if f["severity"] == "error"]
    return finding


def test_the_case_stays_and_its_smaller_inputs_stand_beside_it(found):
    finding = only(found["Scaled"])
    assert (finding["case"]["id"], finding["case"]["sizes"]) == ("b=5,d=6", {"b": 5, "d": 6})
    assert finding["case"]["shrunk"] == {"sizes": {"b": 2, "d": 1}, "point": "plain", "draw": 0}
    assert (finding["cause"], finding["factor"]) == ("constant-factor", 3.0)
    # What was wrong at a part of the Jacobian still is, so that one sees where.
    assert finding["entries"]["wrong"] < finding["entries"]["checked"] == 4
    worst = finding["entries"]["worst"][0]
    assert (worst["analytical"], worst["numerical"]) in {(4.5, 1.5), (-4.5, -1.5), (3.0, 1.0), (-3.0, -1.0)}


def test_a_tail_keeps_what_comes_before_it(found):
    finding = only(found["Tail"])
    assert finding["case"]["shrunk"]["sizes"]["n"] > 4
    assert finding["entries"]["wrong"] < finding["entries"]["checked"]


def test_a_factor_that_follows_a_size_keeps_that_size(found):
    finding = only(found["Mean"])
    assert finding["factor"] == finding["case"]["shrunk"]["sizes"]["b"] == 4
    assert finding["case"]["shrunk"]["sizes"]["d"] <= 2


def test_it_is_not_reported_where_it_hardly_shows(found):
    finding = only(found["Normalised"])
    worst = finding["entries"]["worst"][0]
    assert abs(worst["analytical"] - worst["numerical"]) > 0.01


def test_a_process_that_ends_at_smaller_sizes_costs_no_verdict(found):
    finding = only(found["OnlyLarge"])
    assert finding["code"] == "GV101"
    assert found["Unit"]["status"] == "failed"


def test_structured_inputs_keep_their_structure(found):
    finding = only(found["Unit"])
    shrunk = finding["case"]["shrunk"]["sizes"]
    assert shrunk["b"] * shrunk["d"] < 4 * 3
    assert finding["cause"] == "constant-factor"


def test_the_command_reproduces_it(folder, found):
    finding = only(found["Scaled"])
    words = finding["reproduce"].replace("'", "").split()[2:]
    again = only(check(folder, *words)["Scaled"])
    assert again == finding


MISMATCHED = """\
import torch

class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w.t(), x.t() @ grad
"""
TRANSPOSED = """\
module: linear.py
functions:
  Linear:
    sizes: {b: 3, n: 4, m: 5}
    inputs:
      x: [b, n]
      w: {shape: [m, n]}
"""


def test_what_forward_refuses_is_reported_at_the_sizes_of_the_spec(place):
    here = place("screens")
    (here.folder / "linear.py").write_text(MISMATCHED)
    (here.folder / "linear.gradverify.yaml").write_text(TRANSPOSED)
    ran = here("check", "linear.py")
    assert "mat1 and mat2 shapes cannot be multiplied (3x4 and 5x4)" in ran.out
    assert (
        "At b=3,n=4,m=5, `x: [b, n]` is [3, 4] (linear.gradverify.yaml:6), `w: [m, n]` is [5, 4] "
        "(linear.gradverify.yaml:7)." in ran.out
    )


def test_a_fix_that_is_wrong_at_the_inputs_shown_goes(found):
    finding = only(found["TwiceOrOnce"])
    assert finding["case"]["shrunk"]["sizes"] == {"n": 1}
    assert (finding["cause"], finding["factor"]) == ("constant-factor", 2.0)
    assert "fix" not in finding
    assert "fix" not in finding["hint"]
