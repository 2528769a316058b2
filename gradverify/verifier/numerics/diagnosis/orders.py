"""The right numbers in an order that the data make: not sorted back, gathered for scattered."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.verifier.numerics.diagnosis.cause import Cause, Strength
from gradverify.verifier.numerics.diagnosis.evidence import Pair, Pairs, wrong_ones
from gradverify.verifier.numerics.diagnosis.named_values import NamedTensor, Side, named_tensors, side_shape

LEAST_MOVED = 4
"""Lines that must stand elsewhere, at all points together: two are exchanged by much else."""

MOST_COMPARED = 20_000_000
"""Entries that may be compared to find which line stands where."""

LARGEST_ANYWHERE = 60_000
"""Entries of a block whose lines are compared with each other: as many times the lines are compared."""

Order = Callable[[Tensor, int], Tensor]


def _order(t: Tensor, dim: int) -> Tensor:
    return t.argsort(dim=dim, stable=True)


def _rank(t: Tensor, dim: int) -> Tensor:
    return _order(_order(t, dim), dim)


def _twice(t: Tensor, dim: int) -> Tensor:
    return _order(t, dim).gather(dim, _order(t, dim))


def _rank_twice(t: Tensor, dim: int) -> Tensor:
    return _rank(t, dim).gather(dim, _rank(t, dim))


def _opposite(t: Tensor, dim: int) -> Tensor:
    return _order(t, dim).flip(dim).gather(dim, _rank(t, dim))


_ORDERS: tuple[tuple[str, Order], ...] = (
    ("sorted", _order),
    ("sorted descending", lambda t, dim: _order(t, dim).flip(dim)),
    ("unsorted", _rank),
    ("gathered", _twice),
    ("gathered descending", lambda t, dim: _twice(-t, dim)),
    ("scattered", _rank_twice),
    ("opposite", _opposite),
)
"""Where the number at each place is to be found among the true ones."""


def sorted_order(pairs: Pairs) -> Cause | None:
    """Along a dimension, the right numbers stand in the order that sorting a tensor of the call gives."""
    for side in ("column", "row"):
        for name, kind, dim, index in _named_orders(pairs[0], side):
            if all(_is_ordered(pair, side, dim, index) for pair in pairs) and _moves(pairs, side, index):
                side_in_words = "input" if side == "column" else "output"
                return Cause("permuted", side=side_in_words, kind=kind, dim=dim, other=name)
    return None


def other_order(pairs: Pairs) -> Cause | None:
    """The right lines stand in another order along one dimension, which nothing that is known gives."""
    for side in ("column", "row"):
        if any(pair.claimed.numel() * side_length(pair, side) > MOST_COMPARED for pair in pairs):
            continue
        for dim in range(len(side_shape(pairs[0], side))):
            moved = [_moved_within(pair, side, dim) for pair in pairs]
            if None not in moved and sum(m or 0 for m in moved) >= LEAST_MOVED:
                side_in_words = "input" if side == "column" else "output"
                return Cause("permuted", Strength.WEAK, side=side_in_words, kind="unknown", dim=dim)
    return None


def anywhere(pairs: Pairs) -> Cause | None:
    """The gradients of the entries are right, each of another entry: no dimension tells which of which."""
    if pairs[0].source_block.is_complex or any(pair.claimed.numel() > LARGEST_ANYWHERE for pair in pairs):
        return None
    moved = []
    for pair in pairs:
        claimed, true, allowed = _lines(pair, "column")
        if _has_twins(true, allowed):
            return None
        moved.append(_matched(claimed, true, allowed))
    if None in moved or sum(m or 0 for m in moved) < LEAST_MOVED:
        return None
    return Cause("permuted", Strength.WEAK, side="input", kind="anywhere")


def _has_twins(lines: Tensor, allowed: Tensor) -> bool:
    """Whether two lines are one, or zero: among such, much is an order."""
    same = ((lines[:, None] - lines[None]).abs() <= allowed[None]).all(dim=2)
    return bool((same.sum(dim=1) > 1).any()) or bool((lines.abs() <= allowed).all(dim=1).any())


def side_length(pair: Pair, side: Side) -> int:
    """How many lines a side has."""
    return pair.claimed.shape[1 if side == "column" else 0]


@dataclass(frozen=True)
class _Index:
    """Which of the true lines stands at each place, of a tensor's shape; None where a point has none."""

    of: Callable[[Pair], Tensor | None]


def _named_orders(pair: Pair, side: Side) -> Iterator[tuple[str, str, int, _Index]]:
    tensors = list(named_tensors(pair))
    for dim in range(len(side_shape(pair, side))):
        for tensor in tensors:
            for kind, order in _ORDERS:
                yield tensor.name, kind, dim, _Index(_index(tensor, order, side, dim))
        for one, other in itertools.permutations(tensors, 2):
            yield f"{one.name}` and `{other.name}", "exchanged", dim, _Index(_crossed(one, other, side, dim))


def _aligned(values: Tensor, shape: tuple[int, ...], dim: int) -> Tensor | None:
    """A tensor of the side's shape, or of its one dimension, spread over the others."""
    if tuple(values.shape) == shape:
        return values
    if dim < len(shape) and tuple(values.shape) == (shape[dim],):
        return values.reshape([-1 if k == dim else 1 for k in range(len(shape))]).expand(shape)
    return None


def _index(tensor: NamedTensor, order: Order, side: Side, dim: int) -> Callable[[Pair], Tensor | None]:
    def of(pair: Pair) -> Tensor | None:
        values = _aligned(tensor.of(pair), side_shape(pair, side), dim)
        return None if values is None else order(values, dim)

    return of


def _crossed(one: NamedTensor, other: NamedTensor, side: Side, dim: int) -> Callable[[Pair], Tensor | None]:
    """What one's order has put where the other's order should."""

    def of(pair: Pair) -> Tensor | None:
        shape = side_shape(pair, side)
        a, b = _aligned(one.of(pair), shape, dim), _aligned(other.of(pair), shape, dim)
        return None if a is None or b is None else _order(b, dim).gather(dim, _rank(a, dim))

    return of


def _is_ordered(pair: Pair, side: Side, dim: int, index: _Index) -> bool:
    found = index.of(pair)
    if found is None or (side == "column" and pair.source_block.is_complex):
        return False
    flat = _flat(found, dim)

    def moved(matrix: Tensor) -> Tensor:
        return matrix[:, flat] if side == "column" else matrix[flat]

    return pair.explained_by(moved(pair.true), moved(pair.bound))


def _flat(index: Tensor, dim: int) -> Tensor:
    """Places along one dimension as places in the flattened tensor."""
    places = torch.arange(index.numel()).reshape(index.shape)
    return places.gather(dim, index).reshape(-1)


def _moves(pairs: Pairs, side: Side, index: _Index) -> bool:
    """Whether enough lines that are not zero stand elsewhere."""
    axis = 0 if side == "column" else 1
    moved = 0
    for pair in wrong_ones(pairs):
        if index.of(pair) is None:
            return False
        moved += int(pair.wrong.any(dim=axis).sum())
    return moved >= LEAST_MOVED


def _moved_within(pair: Pair, side: Side, dim: int) -> int | None:
    """How many lines stand elsewhere along a dimension; None where lines are no right ones."""
    shape = side_shape(pair, side)
    if dim >= len(shape):
        return None
    claimed, true, allowed = _lines(pair, side)
    places = torch.arange(claimed.shape[0]).reshape(shape).movedim(dim, -1).reshape(-1, shape[dim])
    moved = 0
    for slice_ in places:
        count = _matched(claimed[slice_], true[slice_], allowed[slice_])
        if count is None:
            return None
        moved += count
    return moved


def _lines(pair: Pair, side: Side) -> tuple[Tensor, Tensor, Tensor]:
    """Claimed and true lines, one a row, and how far each true entry may be off."""
    allowed = torch.where(pair.known, pair.bound + ALLOWED * pair.scale, torch.inf)
    lines = (pair.claimed, pair.true.nan_to_num(0.0, 0.0, 0.0), allowed)
    return lines if side == "row" else (lines[0].mT, lines[1].mT, lines[2].mT)


ALLOWED = 1e-8
"""Of the largest entry: lines that differ by no more are one."""


def _matched(claimed: Tensor, true: Tensor, allowed: Tensor) -> int | None:
    """How many claimed lines are another true line, each of which is taken once; None where one is none."""
    same = ((claimed[:, None] - true[None]).abs() <= allowed[None]).all(dim=2)
    free = torch.ones(true.shape[0], dtype=torch.bool)
    stays = same.diagonal().clone()
    free[stays] = False
    moved = 0
    for line in (~stays).nonzero().flatten().tolist():
        candidates = (same[line] & free).nonzero().flatten()
        if not candidates.numel():
            return None
        free[candidates[0]] = False
        # That a line of nothing stands elsewhere is no order.
        moved += int(
            not bool(
                (true[line].abs() <= allowed[line]).all() or (claimed[line].abs() <= allowed[line]).all()
            )
        )
    return moved
