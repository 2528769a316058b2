"""A fast part that rides on forward, at declared wide values: no mistake there, and no excuse for others."""

from __future__ import annotations

import json

import forked_command

MODULE = """
import torch


class Rides(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, log_a):
        ctx.save_for_backward(x, log_a)
        a = log_a.exp()
        return x + torch.sin(a * x) ** 2 / a

    @staticmethod
    def backward(ctx, g):
        x, log_a = ctx.saved_tensors
        a = log_a.exp()
        twice = torch.sin(2 * a * x)
        return g * (1 + twice), g * (x * twice - torch.sin(a * x) ** 2 / a)


class Hum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x + torch.cos(1e5 * x) / 1e5

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (2 * x - torch.sin(1e5 * x))


class Steep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sin(1e11 * x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 1e11 * torch.cos(1e11 * x)


class SteepSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (torch.sin(3e7 * x) * x).sum(-1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g[..., None] * (3e7 * torch.cos(3e7 * x) * x + torch.sin(3e7 * x))


class Sawtooth(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.remainder(1e8 * x, 1.0)

    @staticmethod
    def backward(ctx, g):
        return 1e8 * g


class Positions(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        k = 10.0 ** torch.arange(0, 12, 2, dtype=x.dtype)
        ctx.save_for_backward(x, k)
        return torch.sin(x[..., None] * k)

    @staticmethod
    def backward(ctx, g):
        x, k = ctx.saved_tensors
        return (g * k * torch.cos(x[..., None] * k)).sum(-1)


class WrongSteepSign(Steep):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return -g * 1e11 * torch.cos(1e11 * x)


class WrongBeside(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        return 1e6 * a + b.pow(2).sum().item()

    @staticmethod
    def backward(ctx, g):
        return 1e6 * g, g.new_zeros(3)


class WrongPartOfIt(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(b)
        return 1e6 * a + b.sin().sum() + float(b.cos().sum())

    @staticmethod
    def backward(ctx, g):
        (b,) = ctx.saved_tensors
        return 1e6 * g, g.sum() * b.cos()


class WrongFast(Hum):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (2 * x + torch.sin(1e5 * x))


class WrongAfar(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 * x * torch.where(x > 30, 1.01, 1.0)


class WrongSteep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.exp() * torch.where(x > 30, 1.01, 1.0)
"""

SPEC = """
gradverify: 1
module: m.py
functions:
  Rides: {inputs: {x: {shape: [n], range: [-10, 10]}, log_a: {shape: [n], range: [-10, 10]}}}
  Hum: {inputs: {x: {shape: [n], range: [-100, 100]}}}
  Steep: {inputs: {x: [n]}}
  SteepSum: {inputs: {x: [n, m]}}
  Sawtooth: {inputs: {x: [n]}}
  Positions: {inputs: {x: [n]}}
  WrongSteepSign: {inputs: {x: [n]}}
  WrongBeside: {inputs: {a: [n], b: [3]}}
  WrongPartOfIt: {inputs: {a: [n], b: [3]}}
  WrongFast: {inputs: {x: {shape: [n], range: [-100, 100]}}}
  WrongAfar: {inputs: {x: {shape: [n], range: [-100, 100]}}}
  WrongSteep: {inputs: {x: {shape: [n], range: [-50, 50]}}}
"""


def test_a_fast_part_is_no_mistake_and_excuses_none(tmp_path):
    (tmp_path / "m.py").write_text(MODULE)
    (tmp_path / "m.gradverify.yaml").write_text(SPEC.lstrip())
    ran = forked_command.run(["check", "m.py", "--select", "GV1", "--format", "json"], tmp_path)
    targets = {t["name"]: t for t in json.loads(ran.out)["targets"]}
    right = ("Rides", "Hum", "Steep", "SteepSum", "Sawtooth", "Positions")
    assert {targets[name]["status"] for name in right} <= {"passed", "inconclusive"}
    assert {targets[name]["status"] for name in ("WrongFast", "WrongSteepSign")} <= {"failed", "inconclusive"}
    for name in ("WrongAfar", "WrongSteep", "WrongBeside", "WrongPartOfIt"):
        assert targets[name]["status"] == "failed", name
        assert {"GV101", "GV107"} & {f["code"] for f in targets[name]["findings"]}
