"""A term that couples entries is missing, or there with another coefficient."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.verifier.diagnose.cause import Cause, Strength
from gradverify.verifier.diagnose.evidence import (
    RELATIVE,
    ROUNDING,
    Pair,
    Pairs,
    has_other_sizes,
    wrong_ones,
)
from gradverify.verifier.diagnose.hypotheses.groups import Group, dimension_of, groups_of
from gradverify.verifier.diagnose.hypotheses.structure import LEAST_COUPLED
from gradverify.verifier.diagnose.named_values import NamedTensor, Side, named_tensors, spread

LEAST_CONSTRAINTS = 8
"""Numbers that must be as such a term makes them beyond those that fit it to the data: fewer may be luck."""


@dataclass(frozen=True)
class _Missing:
    """true - claimed of one wrong point, and the groups of entries that interact."""

    pair: Pair
    missing: Tensor
    allowed: Tensor
    """What rounding and the measurement explain of each entry."""
    groups: tuple[Group, ...]


_Vector = Callable[[Pair], Tensor | None]
"""A value for each entry of one side of a block."""


def coupling_term(pairs: Pairs) -> Cause | None:
    """What backward lacks is v · (g · a).sum(), with a named v; or a · (g · v).sum(); or two such terms.

    In each group of entries that interact the difference of the blocks is an outer product with v on one
    side, while the true block itself is no such product: there anything would be one.
    """
    if not has_other_sizes(pairs):
        return None
    points = [_missing(pair) for pair in wrong_ones(pairs)]
    if any(point is None for point in points):
        return None
    known = [point for point in points if point is not None]
    for count in (1, 2):
        for side in ("column", "row"):
            for names, vectors in _combinations(pairs[0], side, count):
                if _are_products(known, vectors, side):
                    return Cause(
                        "missing-term",
                        Strength.WEAK,
                        kind="coupling" if _couples(known) else "offset",
                        side="input" if side == "column" else "output",
                        dim=dimension_of(pairs, [point.groups for point in known]),
                        law=" and ".join(names),
                    )
    return None


def _couples(points: Sequence[_Missing]) -> bool:
    """Whether any group has several outputs: with one each, the term stands at every entry by itself."""
    return any(group.rows.numel() > 1 for point in points for group in point.groups)


def _missing(pair: Pair) -> _Missing | None:
    """None where complex numbers are about, or too many groups."""
    if pair.source_block.is_complex or pair.output_block.is_complex:
        return None
    groups = groups_of(pair)
    if groups is None:
        return None
    allowed = pair.bound + RELATIVE * (pair.claimed.abs() + pair.true.abs()) + ROUNDING * pair.scale
    return _Missing(pair, pair.true - pair.claimed, allowed, groups)


def _combinations(
    pair: Pair, side: Side, count: int
) -> Iterator[tuple[tuple[str, ...], tuple[_Vector, ...]]]:
    """Named vectors, one alone or two at once; of two, ones are always the first, as in a normalisation."""
    named = [("1", _ones(side)), *((t.name, _values(t, side)) for t in named_tensors(pair))]
    if count == 1:
        centred = (
            (f"({t.name} - its mean)", _centred(t, side)) for t in itertools.islice(named_tensors(pair), 2)
        )
        for name, vector in (*named, *centred):
            yield (name,), (vector,)
        return
    for name, vector in named[1:]:
        yield ("1", name), (named[0][1], vector)


def _ones(side: Side) -> _Vector:
    return lambda pair: torch.ones(pair.claimed.shape[1 if side == "column" else 0], dtype=torch.float64)


def _values(tensor: NamedTensor, side: Side) -> _Vector:
    return lambda pair: spread(tensor.of(pair), pair, side)


def _centred(tensor: NamedTensor, side: Side) -> _Vector:
    def values(pair: Pair) -> Tensor | None:
        shaped = tensor.of(pair)
        flat = spread(shaped, pair, side)
        if flat is None or shaped.dim() == 0 or flat.numel() != shaped.numel():
            return None
        return (shaped - shaped.mean(-1, keepdim=True)).reshape(-1)

    return values


def _are_products(points: Sequence[_Missing], vectors: Sequence[_Vector], side: Side) -> bool:
    """Whether the difference is made of the vectors in every group, and the true block is not."""
    others = constraints = 0
    for point in points:
        basis = _basis(point.pair, vectors)
        if basis is None:
            return False
        for group in point.groups:
            own = basis[group.columns if side == "column" else group.rows]
            missing, true, allowed = _lines(point, group, side)
            if bool((missing.abs() <= allowed).all()):
                continue
            if not _spanned(missing, own, allowed):
                return False
            if group.columns.numel() < LEAST_COUPLED:
                continue
            constraints += missing.shape[0] * max(0, missing.shape[1] - own.shape[1])
            others += not _spanned(true, own, allowed)
    return others > 0 and constraints >= LEAST_CONSTRAINTS


def _basis(pair: Pair, vectors: Sequence[_Vector]) -> Tensor | None:
    """The vectors at a point, one a column; None where it has not all of them."""
    given = [v for v in (vector(pair) for vector in vectors) if v is not None]
    if len(given) < len(vectors):
        return None
    basis = torch.stack(given, dim=1)
    return basis if bool(basis.isfinite().all()) else None


def _lines(point: _Missing, group: Group, side: Side) -> tuple[Tensor, Tensor, Tensor]:
    """What is missing, true and allowed in a group: the lines along the side that are known throughout."""
    cut = [group.cut(m) for m in (point.missing, point.pair.true, point.allowed, point.pair.known)]
    missing, true, allowed, known = cut if side == "column" else [m.mT for m in cut]
    whole = known.all(dim=1)
    return missing[whole], true[whole], allowed[whole]


def _spanned(matrix: Tensor, basis: Tensor, allowed: Tensor) -> bool:
    """Whether every row (R × C) lies in the span of the basis (C × k)."""
    if basis.shape[0] <= basis.shape[1]:
        return True
    q, _ = torch.linalg.qr(basis / basis.norm(dim=0).clamp_min(torch.finfo(torch.float64).tiny))
    part = (matrix @ q) @ q.mT
    rest = (matrix - part).abs()
    return bool((rest <= allowed.max() + ROUNDING * part.abs().max()).all())
