"""Mistakes to plant in right Functions, each with the causes that may be named for it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .right_functions import RIGHT, Backward, Right

Change = Callable[[Tensor, tuple, Tensor], Tensor]
"""(gradient of one input, arguments, grad_output) -> a wrong gradient."""


@dataclass(frozen=True)
class Mutant:
    """A right Function with one mistake."""

    id: str
    right: Right
    backward: Backward
    input: int
    true: frozenset[str]
    """Causes that are right, or coarser but true."""


FACTORS = (2.0, 0.5, -1.0, 3.0, -2.5)
EXACT = ("constant-factor",)


def mutants(right: Right) -> Iterator[Mutant]:
    """Every generic mistake in every gradient of one Function."""
    named = list(right.shapes)
    for k, name in enumerate(named):
        if right.shapes[name].startswith("!"):
            continue
        dims = len(right.shapes[name])
        for kind, change, true in _changes(right, k, dims):
            yield Mutant(f"{right.name}-{name}-{kind}", right, _changed(right, k, change), k, frozenset(true))
        for other in range(k + 1, len(named)):
            if right.shapes[named[other]] == right.shapes[name]:
                yield Mutant(
                    f"{right.name}-{name}-swapped", right, _exchanged(right, k, other), k,
                    frozenset({"swapped-inputs", "constant-factor"}),
                )  # fmt: skip


def _changes(right: Right, k: int, dims: int) -> Iterator[tuple[str, Change, tuple[str, ...]]]:
    """(name, change, causes that are right)."""
    pick = zlib.crc32(f"{right.name}/{k}".encode())
    c = FACTORS[pick % len(FACTORS)]
    yield "factor", lambda t, a, g: c * t, EXACT
    yield "zero", lambda t, a, g: torch.zeros_like(t), ("zero",)
    if dims:
        yield "times-size", lambda t, a, g: t * a[0].shape[0], EXACT
        yield "over-numel", lambda t, a, g: t / a[0].numel(), EXACT
        yield "flipped", lambda t, a, g: t.flip(-1), ("permuted",)
        yield "rolled", lambda t, a, g: t.roll(1, -1), ("permuted",)
        yield "last-zero", _at(-1, 0.0), ("region",)
        yield "first-doubled", _at(0, 2.0), ("region",)
        yield (
            "branch-zero",
            lambda t, a, g: torch.where(_real(a[k]) > 0.31, torch.zeros_like(t), t),
            ("branch",),
        )
        yield "branch-negative", lambda t, a, g: torch.where(_real(a[k]).abs() > 1, -t, t), ("branch",)
    if dims > 1:
        yield "reshaped", lambda t, a, g: t.mT.reshape(t.shape), ("transposed", "permuted")
        yield "all-but-first-row", _rows_but_first, ("region",)
        yield "odd-columns", _odd_columns, ("region",)
    yield (
        "float32",
        lambda t, a, g: t.to(torch.complex64 if t.is_complex() else torch.float32).to(t.dtype),
        ("float32-inside",),
    )


def _real(t: Tensor) -> Tensor:
    return t.real if t.is_complex() else t


def _at(place: int, factor: float) -> Change:
    def change(t: Tensor, a: tuple, g: Tensor) -> Tensor:
        t = t.clone()
        t[..., place] *= factor
        return t

    return change


def _rows_but_first(t: Tensor, a: tuple, g: Tensor) -> Tensor:
    t = t.clone()
    t[1:] *= 0.5
    return t


def _odd_columns(t: Tensor, a: tuple, g: Tensor) -> Tensor:
    t = t.clone()
    t[..., 1::2] = 0
    return t


def _changed(right: Right, k: int, change: Change) -> Backward:
    def backward(a, y, g):
        grads = list(right.backward(a, y, g))
        grads[k] = change(grads[k], a, g)
        return tuple(grads)

    return backward


def _exchanged(right: Right, i: int, j: int) -> Backward:
    def backward(a, y, g):
        grads = list(right.backward(a, y, g))
        grads[i], grads[j] = grads[j], grads[i]
        return tuple(grads)

    return backward


ALL: tuple[Mutant, ...] = tuple(m for right in RIGHT for m in mutants(right))
