"""The right numbers in another order: flipped, shifted, transposed, or J g in place of Jᵀ g."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

from gradverify.verifier.numerics.diagnosis.cause import Cause
from gradverify.verifier.numerics.diagnosis.evidence import Pair, Pairs


@dataclass(frozen=True)
class _Named:
    """One way to reorder the entries of a tensor."""

    cause: str
    kind: str
    dim: int | None
    other_dim: int | None
    apply: Callable[[Tensor], Tensor]
    """Of a tensor shaped (..., tensor's own dimensions)."""


def reordered(pairs: Pairs) -> Cause | None:
    """The gradient, or grad_output before it is used, is flipped, shifted, or transposed and reshaped."""
    for side in ("input", "output"):
        dims = len(_shape(pairs[0], side))
        if any(len(_shape(pair, side)) != dims for pair in pairs):
            continue
        for named in _reorderings(dims):
            if all(_explains(pair, side, named) for pair in pairs):
                return Cause(
                    named.cause, side=side, kind=named.kind, dim=named.dim, other_dim=named.other_dim
                )
    return None


def other_product(pairs: Pairs) -> Cause | None:
    """J g is computed where Jᵀ g is needed."""
    for pair in pairs:
        if pair.true.shape[0] != pair.true.shape[1] or pair.source_shape != pair.output_shape:
            return None
        if not pair.explained_by(pair.true.mT, pair.bound.mT):
            return None
    return Cause("transposed", kind="jvp")


def _reorderings(dims: int) -> Iterator[_Named]:
    """Of a tensor with so many dimensions, the likely ones first."""
    for a, b in itertools.combinations(range(dims), 2):
        yield _Named("transposed", "reshaped", a, b, _transposed(a, b))
    if dims > 2:
        yield _Named("transposed", "reversed", None, None, _reversed)
    for dim in reversed(range(dims)):
        yield _Named("permuted", "flipped", dim, None, _flipped(dim))
        yield _Named("permuted", "shifted", dim, None, _shifted(dim, 1))
        yield _Named("permuted", "shifted", dim, None, _shifted(dim, -1))
    for a, b in itertools.combinations(range(dims), 2):
        yield _Named("permuted", "flipped", a, b, _flipped(a, b))


def _transposed(a: int, b: int) -> Callable[[Tensor], Tensor]:
    return lambda t: t.transpose(a + 1, b + 1)


def _reversed(t: Tensor) -> Tensor:
    return t.permute(0, *reversed(range(1, t.dim())))


def _flipped(*dims: int) -> Callable[[Tensor], Tensor]:
    return lambda t: t.flip([d + 1 for d in dims])


def _shifted(dim: int, by: int) -> Callable[[Tensor], Tensor]:
    return lambda t: t.roll(by, dim + 1)


def _shape(pair: Pair, side: str) -> tuple[int, ...]:
    return pair.source_block.shape if side == "input" else pair.output_block.shape


def _explains(pair: Pair, side: str, named: _Named) -> bool:
    shape = _shape(pair, side)

    def moved(matrix: Tensor) -> Tensor:
        lined_up = matrix if side == "input" else matrix.mT
        changed = named.apply(lined_up.reshape(-1, *shape)).reshape(lined_up.shape)
        return changed if side == "input" else changed.mT

    return pair.explained_by(moved(pair.true), moved(pair.bound))
