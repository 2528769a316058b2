"""Right Functions as formulas, with the shapes of their inputs: what mutations are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Backward = Callable[[tuple[Any, ...], Any, Any], tuple[Any, ...]]
"""(arguments, result of forward, grad_output) -> a gradient for each argument."""


@dataclass(frozen=True)
class Right:
    """A formula with its right backward."""

    name: str
    forward: Callable[..., Any]
    backward: Backward
    shapes: dict[str, str]
    """Each tensor's shape, one letter for each dimension; `!` before an index into the first letter."""
    dtype: str = "float64"
    literals: tuple[tuple[str, float], ...] = ()


def _softmax(a, y, g):
    return (y * (g - (g * y).sum(-1, keepdim=True)),)


def _center(a, y, g):
    return (g - g.mean(0, keepdim=True),)


def _rownorm(a, y, g):
    (x,) = a
    n = x.norm(dim=-1, keepdim=True)
    return ((g - y * (g * y).sum(-1, keepdim=True)) / n,)


def _linear(a, y, g):
    x, w = a
    return g @ w, g.mT @ x


def _bmm(a, y, g):
    p, q = a
    return g @ q.mT, p.mT @ g


def _affine(a, y, g):
    x, w, _ = a
    return g * w, (g * x).sum(0), g.sum(0)


def _embedding(a, y, g):
    table, index = a
    return torch.zeros_like(table).index_add(0, index, g), None


def _mse(a, y, g):
    p, t = a
    d = 2 * (p - t) / p.numel() * g
    return d, -d


def _moments(a, y, g):
    (x,) = a
    gm, gv = g
    n = x.shape[-1]
    mean = x.mean(-1, keepdim=True)
    gm = torch.zeros_like(x[:, 0]) if gm is None else gm
    gv = torch.zeros_like(x[:, 0]) if gv is None else gv
    return (gm[:, None] / n + gv[:, None] * 2 * (x - mean) / n,)


def _layernorm(a, y, g):
    x, w, _ = a
    mean = x.mean(-1, keepdim=True)
    rstd = 1 / (x.var(-1, unbiased=False, keepdim=True) + 1e-3).sqrt()
    xhat = (x - mean) * rstd
    gw = g * w
    dx = rstd * (gw - gw.mean(-1, keepdim=True) - xhat * (gw * xhat).mean(-1, keepdim=True))
    return dx, (g * xhat).sum(0), g.sum(0)


def _scaled(a, y, g):
    x, s = a
    t = torch.tanh(x)
    return g * s * (1 - t * t), (g * t).sum()


def _logsumexp(a, y, g):
    (x,) = a
    return (g[:, None] * torch.softmax(x, -1),)


def _outer(a, y, g):
    p, q = a
    return g @ q, g.mT @ p


RIGHT: tuple[Right, ...] = (
    Right("square", lambda x: x * x, lambda a, y, g: (2 * a[0] * g,), {"x": "bn"}),
    Right("exp", torch.exp, lambda a, y, g: (g * y,), {"x": "bn"}),
    Right("sigmoid", torch.sigmoid, lambda a, y, g: (g * y * (1 - y),), {"x": "bn"}),
    Right("leaky", lambda x: torch.where(x > 0, x, 0.1 * x),
          lambda a, y, g: (torch.where(a[0] > 0, g, 0.1 * g),), {"x": "bn"}),
    Right("softmax", lambda x: torch.softmax(x, -1), _softmax, {"x": "bn"}),
    Right("center", lambda x: x - x.mean(0, keepdim=True), _center, {"x": "bn"}),
    Right("rownorm", lambda x: x / x.norm(dim=-1, keepdim=True), _rownorm, {"x": "bn"}),
    Right("cumsum", lambda x: x.cumsum(-1), lambda a, y, g: (g.flip(-1).cumsum(-1).flip(-1),), {"x": "bn"}),
    Right("logsumexp", lambda x: x.logsumexp(-1), _logsumexp, {"x": "bn"}),
    Right("moments", lambda x: (x.mean(-1), x.var(-1, unbiased=False)), _moments, {"x": "bn"}),
    Right("mul", lambda a, b: a * b, lambda a, y, g: (g * a[1], g * a[0]), {"a": "bn", "b": "bn"}),
    Right("div", lambda a, b: a / (b * b + 1),
          lambda a, y, g: (g / (a[1] ** 2 + 1), -2 * a[1] * g * a[0] / (a[1] ** 2 + 1) ** 2),
          {"a": "bn", "b": "bn"}),
    Right("mse", lambda p, t: ((p - t) ** 2).mean(), _mse, {"prediction": "bn", "target": "bn"}),
    Right("scaled_tanh", lambda x, s: s * torch.tanh(x), _scaled, {"x": "bn", "scale": ""}),
    Right("linear", lambda x, w: x @ w.mT, _linear, {"x": "bn", "weight": "mn"}),
    Right("bmm", lambda p, q: p @ q, _bmm, {"p": "bnm", "q": "bmk"}),
    Right("outer", torch.outer, lambda a, y, g: (g @ a[1], g.mT @ a[0]), {"p": "n", "q": "m"}),
    Right("affine", lambda x, w, beta: x * w + beta, _affine, {"x": "bn", "weight": "n", "beta": "n"}),
    Right("layernorm",
          lambda x, w, beta: (x - x.mean(-1, keepdim=True))
          / (x.var(-1, unbiased=False, keepdim=True) + 1e-3).sqrt() * w + beta,
          _layernorm, {"x": "bn", "weight": "n", "beta": "n"}),
    Right("embedding", lambda table, index: table[index], _embedding, {"table": "nd", "index": "!n/k"}),
    Right("product", lambda a, b: a * b, lambda a, y, g: (g * a[1].conj(), g * a[0].conj()),
          {"a": "bn", "b": "bn"}, dtype="complex128"),
)  # fmt: skip


def function_of(right: Right, backward: Backward) -> type[torch.autograd.Function]:
    """A Function with the formula's forward and some backward."""

    class Made(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *arguments):
            result = right.forward(*arguments)
            outputs = result if isinstance(result, tuple) else (result,)
            ctx.save_for_backward(*arguments, *outputs)
            ctx.count = len(arguments)
            ctx.set_materialize_grads(False)
            return result

        @staticmethod
        def backward(ctx, *grads: Tensor | None):
            saved = ctx.saved_tensors
            outputs = saved[ctx.count :]
            several = len(outputs) > 1
            return backward(
                tuple(saved[: ctx.count]), outputs if several else outputs[0], grads if several else grads[0]
            )

    Made.__name__ = right.name
    return Made
