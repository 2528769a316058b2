"""A term that couples the entries along one dimension is missing, or there with another coefficient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.verifier.numerics.diagnosis.cause import Cause, Strength
from gradverify.verifier.numerics.diagnosis.evidence import (
    RELATIVE,
    ROUNDING,
    Pair,
    Pairs,
    has_other_sizes,
    wrong_ones,
)

LEAST_LENGTH = 3
"""Entries along the dimension: a difference of two by two has rank one far too often."""


@dataclass(frozen=True)
class _Slices:
    """A block cut into what couples along one dimension: S slices of k × k (outputs × inputs)."""

    missing: Tensor
    """true - claimed, S × k × k."""
    true: Tensor
    allowed: Tensor
    """What rounding and the measurement explain of each entry."""
    x: Tensor
    """S × k."""
    y: Tensor


_VECTORS: tuple[tuple[str, Callable[[_Slices], Tensor]], ...] = (
    ("1", lambda s: torch.ones_like(s.x)),
    ("{y}", lambda s: s.y),
    ("{x}", lambda s: s.x),
    ("({x} - {x}.mean({dim}, keepdim=True))", lambda s: s.x - s.x.mean(1, keepdim=True)),
)
"""What such a term is a multiple of, in each slice."""


def coupling_term(pairs: Pairs) -> Cause | None:
    """What backward lacks is v · (g · a).sum(dim), with a named v; or a · (g · v).sum(dim).

    In each slice along the dimension the difference of the blocks is an outer product with v on one side, and
    zero between slices, while the true block itself is no such product: there anything would be one.
    """
    if not has_other_sizes(pairs):
        return None
    for dim in range(len(pairs[0].source_shape)):
        cut = [_slices(pair, dim) for pair in wrong_ones(pairs)]
        if any(slices is None for slices in cut):
            continue
        known = [slices for slices in cut if slices is not None]
        for side, transposed in (("input", False), ("output", True)):
            for name, vector in _VECTORS:
                if all(_is_product(s, vector, transposed=transposed) for s in known):
                    law = name.format(x=pairs[0].name, y=pairs[0].output_name, dim=dim)
                    return Cause("missing-term", Strength.WEAK, kind="coupling", side=side, dim=dim, law=law)
    return None


def _slices(pair: Pair, dim: int) -> _Slices | None:
    """None where input and output are not alike, a slice is short, or slices differ in what they share."""
    shape = pair.source_block.shape
    if shape != pair.output_block.shape or pair.source_block.is_complex or not pair.known.all():
        return None
    if dim >= len(shape) or shape[dim] < LEAST_LENGTH:
        return None
    missing = pair.true - pair.claimed
    allowed = pair.bound + RELATIVE * (pair.claimed.abs() + pair.true.abs()) + ROUNDING * pair.scale
    count = missing.shape[0] // shape[dim]
    between = ~torch.eye(count, dtype=torch.bool)
    apart = _paired(missing, shape, dim).abs() > _paired(allowed, shape, dim)
    if (apart.any(dim=3).any(dim=1) & between).any():
        return None
    return _Slices(
        *(_own(_paired(m, shape, dim)) for m in (missing, pair.true, allowed)),
        *(_lined_up(values, shape, dim) for values in (pair.x, pair.y)),
    )


def _paired(matrix: Tensor, shape: tuple[int, ...], dim: int) -> Tensor:
    """An m × n matrix as S × k × S × k."""
    rows = _lined_up(matrix, shape, dim)
    columns = _lined_up(rows.reshape(-1, matrix.shape[1]).mT, shape, dim)
    return columns.permute(2, 0, 1).reshape(*rows.shape[:2], *columns.shape[:2])


def _lined_up(values: Tensor, shape: tuple[int, ...], dim: int) -> Tensor:
    """The first dimension, which holds a tensor's entries, as S × k with k along `dim`."""
    shaped = values.reshape(*shape, *values.shape[1:]).movedim(dim, len(shape) - 1)
    return shaped.reshape(-1, shape[dim], *values.shape[1:])


def _own(paired: Tensor) -> Tensor:
    return paired.diagonal(dim1=0, dim2=2).permute(2, 0, 1)


def _is_product(slices: _Slices, vector: Callable[[_Slices], Tensor], *, transposed: bool) -> bool:
    v = vector(slices)
    of = (slices.missing, slices.true, slices.allowed)
    missing, true, allowed = (m.mT if transposed else m for m in of)
    return bool(_rest(missing, v, allowed).all()) and not bool(_rest(true, v, allowed).all())


def _rest(matrix: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    """Entries of S × k × k that are a[r] · v[c] in each slice."""
    a = (matrix @ v[:, :, None]) / (v * v).sum(1)[:, None, None]
    return (matrix - a * v[:, None, :]).abs() <= allowed + ROUNDING * (a * v[:, None, :]).abs()
