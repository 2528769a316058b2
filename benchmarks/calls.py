"""How often forward and backward are called for Functions that everybody writes, each with four cases.

    python benchmarks/calls.py [--engine ENGINE ...] [--select CODES]

A call is one entry into the user's forward or backward, as the report's `evaluations` count them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

MODULE = '''
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Softmax(Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(-1, keepdim=True))


class WrongSoftmax(Softmax):
    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).mean(-1, keepdim=True))


class Linear(Function):
    @staticmethod
    def forward(ctx, x, weight, bias=None):
        ctx.save_for_backward(x, weight)
        y = x @ weight.t()
        return y if bias is None else y + bias

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g @ weight, g.t() @ x, g.sum(0) if ctx.needs_input_grad[2] else None


class LayerNorm(Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        c = x - x.mean(-1, keepdim=True)
        return c / (c.square().mean(-1, keepdim=True) + eps).sqrt() * weight + bias

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        c = x - x.mean(-1, keepdim=True)
        rstd = 1 / (c.square().mean(-1, keepdim=True) + ctx.eps).sqrt()
        n, h = c * rstd, g * weight
        dx = rstd * (h - h.mean(-1, keepdim=True) - n * (h * n).mean(-1, keepdim=True))
        return dx, (g * n).sum(0), g.sum(0), None


class Scan(Function):
    """h[t] = a[t] h[t-1] + x[t]."""

    @staticmethod
    def forward(ctx, a, x):
        h, rows = torch.zeros_like(x[0]), []
        for t in range(len(x)):
            h = a[t] * h + x[t]
            rows.append(h)
        y = torch.stack(rows)
        ctx.save_for_backward(a, y)
        return y

    @staticmethod
    def backward(ctx, g):
        a, y = ctx.saved_tensors
        carry, of_a, of_x = torch.zeros_like(g[0]), [], []
        for t in reversed(range(len(g))):
            carry = carry + g[t]
            of_x.append(carry)
            of_a.append(carry * y[t - 1] if t else torch.zeros_like(carry))
            carry = carry * a[t]
        return torch.stack(of_a[::-1]), torch.stack(of_x[::-1])


class CrossEntropy(Function):
    @staticmethod
    def forward(ctx, logits, target):
        p = torch.log_softmax(logits, -1)
        ctx.save_for_backward(p, target)
        return -p.gather(-1, target[:, None]).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        p, target = ctx.saved_tensors
        one = torch.zeros_like(p).scatter_(-1, target[:, None], 1.0)
        return g * (p.exp() - one) / len(target), None


class Attention(Function):
    @staticmethod
    def forward(ctx, q, k, v):
        p = torch.softmax(q @ k.t() / q.shape[-1] ** 0.5, -1)
        ctx.save_for_backward(q, k, v)
        return p @ v

    @staticmethod
    def backward(ctx, g):
        q, k, v = ctx.saved_tensors
        s = q.shape[-1] ** -0.5
        p = torch.softmax(q @ k.t() * s, -1)
        dp = g @ v.t()
        ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * s
        return ds @ k, ds.t() @ q, p.t() @ g
'''

SPEC = """
gradverify: 1
module: functions.py
functions:
  Softmax: {sizes: {b: [3, 1], d: [5, 3]}, inputs: {x: [b, d]}}
  Linear: {sizes: {b: [3, 1], n: 4, m: [2, 5]}, inputs: {x: [b, n], weight: [m, n], bias: {shape: [m], optional: true}}}
  LayerNorm: {sizes: {b: [3, 1], d: [5, 3]}, inputs: {x: [b, d], weight: [d], bias: [d], eps: 1e-5}}
  Scan: {sizes: {t: [5, 1], d: [3, 2]}, inputs: {a: [t, d], x: [t, d]}}
  CrossEntropy:
    sizes: {b: [3, 1], c: [5, 2]}
    inputs: {logits: [b, c], target: {shape: [b], dtype: int64, range: [0, c]}}
  Attention: {sizes: {n: [3, 1], m: [4, 2], d: 3}, inputs: {q: [n, d], k: [m, d], v: [m, d]}}
  WrongSoftmax: {sizes: {b: [3, 1], d: [5, 3]}, inputs: {x: [b, d]}}
"""  # noqa: E501 - one line for each


def calls(folder: Path, engine: str, select: str) -> dict[str, tuple[str, int, int]]:
    """Verdict, forwards and backwards of each Function."""
    command = [sys.executable, "-m", "gradverify", "check", "functions.py", "--format", "json"]
    command += ["--engine", engine] + (["--select", select] if select else [])
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    found = json.loads(ran.stdout)["targets"]
    return {
        t["name"]: (t["status"], t["evaluations"]["forward"], t["evaluations"]["backward"]) for t in found
    }


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", nargs="+", default=["witnesses"])
    parser.add_argument("--select", default="", metavar="CODES")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "functions.py").write_text(MODULE)
        (folder / "functions.gradverify.yaml").write_text(SPEC)
        by_engine = {engine: calls(folder, engine, options.select) for engine in options.engine}
    print("| Function | " + " | ".join(by_engine) + " |")
    print("|---" * (1 + len(by_engine)) + "|")
    for name in next(iter(by_engine.values())):
        cells = (by_engine[engine][name] for engine in by_engine)
        print(f"| {name} | " + " | ".join(f"{f + b} ({f} + {b}), {status}" for status, f, b in cells) + " |")


if __name__ == "__main__":
    main()
