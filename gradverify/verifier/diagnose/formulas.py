"""What derivatives are made of: the functions, reductions and multiples that a factor is looked up in."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

ABOUT = 1e-6
"""A factor is a function of the data if it is that within this share: a measured one has some nine digits."""

MULTIPLES = {1.0: "", -1.0: "-", 2.0: "2 * ", -2.0: "-2 * ", 0.5: "1/2 * ", -0.5: "-1/2 * "}
"""Numbers that the function may be multiplied by, and how they are written."""

Function = Callable[[Tensor], Tensor]


def _sech2(v: Tensor) -> Tensor:
    return 1 - torch.tanh(v) ** 2


def _logistic_slope(v: Tensor) -> Tensor:
    return torch.sigmoid(v) * torch.sigmoid(-v)


FUNCTIONS: tuple[tuple[str, Function], ...] = (
    ("{}", lambda v: v),
    ("1 / {}", lambda v: 1 / v),
    ("{}**2", lambda v: v * v),
    ("1 / {}**2", lambda v: 1 / (v * v)),
    ("(1 - {})", lambda v: 1 - v),
    ("1 / (1 - {})", lambda v: 1 / (1 - v)),
    ("(1 + {})", lambda v: 1 + v),
    ("1 / (1 + {})", lambda v: 1 / (1 + v)),
    ("(1 - {}**2)", lambda v: 1 - v * v),
    ("1 / (1 - {}**2)", lambda v: 1 / (1 - v * v)),
    ("(1 + {}**2)", lambda v: 1 + v * v),
    ("1 / (1 + {}**2)", lambda v: 1 / (1 + v * v)),
    ("({} * (1 - {}))", lambda v: v * (1 - v)),
    ("1 / ({} * (1 - {}))", lambda v: 1 / (v * (1 - v))),
    ("exp({})", torch.exp),
    ("exp(-{})", lambda v: torch.exp(-v)),
    ("exp(2 * {})", lambda v: torch.exp(2 * v)),
    ("exp(-2 * {})", lambda v: torch.exp(-2 * v)),
    ("sqrt({})", torch.sqrt),
    ("1 / sqrt({})", lambda v: 1 / torch.sqrt(v)),
    ("sign({})", torch.sign),
    ("log({})", torch.log),
    ("1 / log({})", lambda v: 1 / torch.log(v)),
    ("sigmoid({})", torch.sigmoid),
    ("1 / sigmoid({})", lambda v: 1 / torch.sigmoid(v)),
    ("sigmoid(-{})", lambda v: torch.sigmoid(-v)),
    ("1 / sigmoid(-{})", lambda v: 1 / torch.sigmoid(-v)),
    ("(sigmoid({}) * sigmoid(-{}))", _logistic_slope),
    ("1 / (sigmoid({}) * sigmoid(-{}))", lambda v: 1 / _logistic_slope(v)),
    ("tanh({})", torch.tanh),
    ("1 / tanh({})", lambda v: 1 / torch.tanh(v)),
    ("(1 - tanh({})**2)", _sech2),
    ("1 / (1 - tanh({})**2)", lambda v: 1 / _sech2(v)),
    ("(1 + tanh({}))", lambda v: 1 + torch.tanh(v)),
    ("1 / (1 + tanh({}))", lambda v: 1 / (1 + torch.tanh(v))),
    ("sin({})", torch.sin),
    ("1 / sin({})", lambda v: 1 / torch.sin(v)),
    ("cos({})", torch.cos),
    ("1 / cos({})", lambda v: 1 / torch.cos(v)),
)
"""Factors that derivatives are made of, and their inverses: for one too many, and for a missing one."""

REDUCTIONS: tuple[tuple[str, Callable[[Tensor, int], Tensor]], ...] = (
    ("norm(dim={dim}, keepdim=True)", lambda t, dim: t.norm(dim=dim, keepdim=True)),
    ("sum({dim}, keepdim=True)", lambda t, dim: t.sum(dim, keepdim=True)),
    ("mean({dim}, keepdim=True)", lambda t, dim: t.mean(dim, keepdim=True)),
    ("std({dim}, keepdim=True, correction=0)", lambda t, dim: t.std(dim, keepdim=True, correction=0)),
)
"""Numbers that a slice comes to, as they can be copied: `x.norm(1)` is another one."""

WITH_EPSILON: tuple[tuple[str, Callable[[Tensor, int], Tensor]], ...] = (
    (
        "{name}.var({dim}, keepdim=True, correction=0) + {epsilon}",
        lambda t, dim: t.var(dim, keepdim=True, correction=0),
    ),
    (
        "{name}.square().mean({dim}, keepdim=True) + {epsilon}",
        lambda t, dim: t.square().mean(dim, keepdim=True),
    ),
    (
        "{name}.square().sum({dim}, keepdim=True) + {epsilon}",
        lambda t, dim: t.square().sum(dim, keepdim=True),
    ),
)
"""Sums with a small number that keeps them from zero."""

POWERS_OF_SUM: tuple[tuple[str, float], ...] = (
    ("sqrt({})", 2.0),
    ("1 / sqrt({})", -2.0),
    ("({})", 1.0),
    ("1 / ({})", -1.0),
)
"""A factor made of such a sum, and the power of the factor that gives the sum back."""
