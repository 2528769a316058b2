"""Structured inputs: how a free draw becomes a point of the structure, and how steps stay on it.

A manifold has a *retraction*: a differentiable map from the ambient space onto the manifold that leaves the
base point where it is. Composed with the target it makes every derivative tangential: numerical steps stay
valid, and autograd projects the gradient by itself. (Absil, Mahony, Sepulchre: *Optimization Algorithms on
Matrix Manifolds*, 2008, ch. 4.)
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import torch
from torch import Tensor

from gradverify.model import TensorInput
from gradverify.model.case import (
    SQUARE,
)
from gradverify.verifier.inputs.values import (
    integers_of,
)

Retraction = Callable[[Tensor], Tensor]
"""From an ambient tensor near the base point to the manifold."""

DIAGONAL = 2.0
"""What is added to the diagonal where a matrix must be well away from singular."""


def fits(structure: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor of this shape can have the structure."""
    return structure not in SQUARE or (len(shape) > 1 and shape[-1] == shape[-2])


def place(structure: str, free: Tensor) -> Tensor:
    """A point of a floating structure near freely drawn values of the same shape.

    Matrix structures act on the last two dimensions, `unit-norm`, `simplex` and `sorted` on the last one.
    Values keep four decimals where the structure allows, so that a person can read them.
    """
    if structure not in _PLACES:
        raise ValueError(f"`{structure}` is no floating structure")
    return _PLACES[structure](free)


def retraction(structure: str, base: Tensor) -> Retraction | None:
    """How steps from `base` stay on the structure; None where every small step does."""
    match structure:
        case "spd" | "symmetric":
            return lambda x: base + _symmetric_part(x - base)
        case "triangular" | "cholesky-factor":
            return lambda x: base + torch.tril(x - base)
        case "orthogonal":
            return lambda x: _cayley(base, x)
        case "unit-norm":
            return lambda x: torch.nn.functional.normalize(x, dim=-1)
        case "simplex":
            return lambda x: x - (x - base).mean(dim=-1, keepdim=True)
        case _:
            return None


def place_integers(spec: TensorInput, source: random.Random) -> list[int]:
    """Entries of an integer structure in row-major order.

    `offsets`: 0 … exactly the upper bound, increasing (cumulative lengths). `permutation`: each of 0 … n - 1
    once. `sorted`: ascending values of the range. `one-hot`: one 1 in each row.
    """
    count = math.prod(spec.shape)
    match spec.structure:
        case "offsets":
            bounds = tuple(int(bound) for bound in spec.range or (0, 2))
            inner = range(bounds[0] + 1, bounds[1])
            wanted = max(0, count - 2)
            cuts = (
                source.sample(inner, wanted)
                if len(inner) >= wanted
                else source.choices(range(bounds[0], bounds[1] + 1), k=wanted)
            )
            return [bounds[0], *sorted(cuts), bounds[1]][-count:] if count > 1 else [bounds[0]] * count
        case "permutation":
            return source.sample(range(count), count)
        case "sorted":
            places, at = integers_of(spec)
            return sorted(map(at, source.choices(places, k=count)))
        case "one-hot":
            return [bit for _ in range(count // spec.shape[-1]) for bit in _one_hot(spec.shape[-1], source)]
        case structure:
            raise ValueError(f"`{structure}` is no integer structure")


def _one_hot(width: int, source: random.Random) -> list[int]:
    chosen = source.randrange(width)
    return [int(k == chosen) for k in range(width)]


def _symmetric_part(x: Tensor) -> Tensor:
    return (x + x.mT) / 2


def _cayley(base: Tensor, x: Tensor) -> Tensor:
    """Base times the Cayley transform of the skew part of the step: orthogonal for every step."""
    step = base.mT @ (x - base)
    skew = (step - step.mT) / 2
    identity = _identity(base)
    rotation: Tensor = torch.linalg.solve(identity - skew / 2, identity + skew / 2)
    return base @ rotation


def _identity(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)


def _sign_of_diagonal(x: Tensor) -> Tensor:
    sign = torch.sign(torch.diagonal(x, dim1=-2, dim2=-1))
    return torch.where(sign == 0, 1.0, sign).unsqueeze(-1)


def _short(x: Tensor) -> Tensor:
    """Rounded to four decimals: the structures this is used for survive it."""
    return torch.round(x, decimals=4)


def _spd(free: Tensor) -> Tensor:
    lower = torch.tril(free)
    return _short(lower @ lower.mT / free.shape[-1] + DIAGONAL / 2 * _identity(free))


def _cholesky_factor(free: Tensor) -> Tensor:
    diagonal = torch.diagonal(free, dim1=-2, dim2=-1).abs() + DIAGONAL / 4
    return _short(torch.tril(free, -1) + torch.diag_embed(diagonal))


def _orthogonal(free: Tensor) -> Tensor:
    q, r = torch.linalg.qr(free + _identity(free) / 4)
    turned: Tensor = q * torch.sign(torch.diagonal(r, dim1=-2, dim2=-1)).unsqueeze(-2)
    return turned


def _simplex(free: Tensor) -> Tensor:
    weights = free.abs() + DIAGONAL / 8
    return weights / weights.sum(dim=-1, keepdim=True)


def _one_of_each_row(free: Tensor) -> Tensor:
    return torch.zeros_like(free).scatter_(-1, free.argmax(dim=-1, keepdim=True), 1.0)


_PLACES: dict[str, Callable[[Tensor], Tensor]] = {
    "spd": _spd,
    "symmetric": lambda free: _short(_symmetric_part(free)),
    "invertible": lambda free: _short(free + DIAGONAL * _identity(free) * _sign_of_diagonal(free)),
    "triangular": torch.tril,
    "cholesky-factor": _cholesky_factor,
    "orthogonal": _orthogonal,
    "unit-norm": lambda free: torch.nn.functional.normalize(free, dim=-1),
    "simplex": _simplex,
    "sorted": lambda free: free.sort(dim=-1).values,
    "one-hot": _one_of_each_row,
}
