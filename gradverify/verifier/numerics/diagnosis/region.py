"""Wrong in one part of a tensor only: a row, a tail, all but the first slice, one entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradverify.verifier.numerics.diagnosis.cause import Cause, Strength
from gradverify.verifier.numerics.diagnosis.evidence import (
    Pair,
    Pairs,
    has_other_sizes,
    same_everywhere,
    wrong_ones,
)
from gradverify.verifier.numerics.diagnosis.factor import SAME_FACTOR, factor_of

HIGHEST_INDEX = 3
"""Single slices are named by their index up to this one."""

LARGE_PARTS = frozenset({"all but the first", "all but the last", "odd", "even", "inner"})
"""Parts with half of all slices, or most of them."""

TAILS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Widths of vectorised loops and of blocks whose remainder may be forgotten."""

LEAST_BEYOND = 4
"""Slices on either side of an index from which on a gradient is wrong: fewer are named otherwise."""


@dataclass(frozen=True)
class _Part:
    """A set of indices along one dimension that has a name at every size."""

    kind: str
    of: Callable[[int], Tensor]
    """Length of the dimension -> bool mask."""


def _parts() -> Iterator[_Part]:
    yield _Part("first", lambda n: torch.arange(n) == 0)
    yield _Part("last", lambda n: torch.arange(n) == n - 1)
    yield _Part("all but the first", lambda n: torch.arange(n) != 0)
    yield _Part("all but the last", lambda n: torch.arange(n) != n - 1)
    for k in range(1, HIGHEST_INDEX + 1):
        yield _Part(f"index {k}", _index(k))
    yield _Part("first two", lambda n: torch.arange(n) < 2)
    yield _Part("last two", lambda n: torch.arange(n) >= n - 2)
    yield _Part("odd", lambda n: torch.arange(n) % 2 == 1)
    yield _Part("even", lambda n: torch.arange(n) % 2 == 0)
    yield _Part("ends", lambda n: (torch.arange(n) == 0) | (torch.arange(n) == n - 1))
    yield _Part("inner", lambda n: (torch.arange(n) != 0) & (torch.arange(n) != n - 1))
    for width in TAILS:
        yield _Part(f"remainder after groups of {width}", _tail(width))


def _small_parts() -> Iterator[_Part]:
    """Those that are a place: wrong nearly everywhere, by no single factor, is no reason to look there."""
    return (part for part in _parts() if part.kind not in LARGE_PARTS)


def _index(k: int) -> Callable[[int], Tensor]:
    return lambda n: torch.arange(n) == k


def _tail(width: int) -> Callable[[int], Tensor]:
    return lambda n: torch.arange(n) >= n - n % width


def _beyond(start: int) -> Callable[[int], Tensor]:
    return lambda n: torch.arange(n) >= start


def _first_wrong(pairs: Pairs, side: str, dim: int) -> int | None:
    """The index from which on slices of a dimension are wrong, if it is one at all points and far inside."""
    starts = set()
    for pair in wrong_ones(pairs):
        shape = _shape(pair, side)
        if dim >= len(shape):
            return None
        lines = pair.wrong.any(dim=0 if side == "input" else 1)
        if (pair.source_block if side == "input" else pair.output_block).is_complex:
            lines = lines.reshape(-1, 2).any(dim=1)
        slices = lines.reshape(shape).movedim(dim, 0).reshape(shape[dim], -1).any(dim=1)
        start = int(slices.int().argmax())
        starts.add(start)
        if not LEAST_BEYOND <= start <= shape[dim] - LEAST_BEYOND:
            return None
    return starts.pop() if len(starts) == 1 else None


def not_summed(pairs: Pairs) -> Cause | None:
    """The input is broadcast over a dimension of the output, and one slice was taken instead of the sum."""
    if all(pair.claimed.shape[1] >= pair.claimed.shape[0] for pair in pairs):
        return None
    for dim in range(len(pairs[0].output_block.shape)):
        for kind, part in (("first", "all but the first"), ("last", "all but the last")):
            masks = _masks(pairs, "output", dim, next(p for p in _parts() if p.kind == part))
            if masks is not None and _factor_within(pairs, masks) == 0.0:
                return Cause("not-summed-over-broadcast", dim=dim, kind=kind)
    return None


def region(pairs: Pairs) -> Cause | None:
    """Wrong by one factor in a part of a tensor that is the same at all points, right elsewhere."""
    return _region(pairs, with_factor=True)


def region_of_nothing(pairs: Pairs) -> Cause | None:
    """Wrong in a part of a tensor where the derivative is zero, and right elsewhere."""
    found = irregular_region(pairs)
    return found if found is not None and found.law == NOTHING else None


NOTHING = "0"
"""What the derivative is in a part of a tensor where backward is not."""


def irregular_region(pairs: Pairs) -> Cause | None:
    """Wrong in every slice of a part of a tensor, by no single factor, and right elsewhere."""
    return _region(pairs, with_factor=False)


def _region(pairs: Pairs, *, with_factor: bool) -> Cause | None:
    if not has_other_sizes(pairs):
        return None
    for side in ("input", "output"):
        for kind, dim, masks in _places(pairs, side, with_factor=with_factor):
            found = None if masks is None else _judged(pairs, masks, with_factor=with_factor)
            if found is not None and masks is not None:
                if found.factor == 0 and side == "input" and _is_reached_otherwise(pairs, masks):
                    found = replace(found, name="missing-term", strength=Strength.WEAK)
                return _cause(found, side, dim, kind, pairs)
    return None


def _is_reached_otherwise(pairs: Pairs, masks: list[Tensor]) -> bool:
    """Whether what comes through another output is right there and not zero: no bound leaves that out."""
    seen = False
    for pair, mask in zip(pairs, masks, strict=True):
        columns = mask.any(dim=0)
        for output in range(len(pair.point.outputs.blocks)):
            other = Pair(pair.point, output, pair.source)
            if output == pair.output or not other.nonzero[:, columns].any():
                continue
            if other.wrong[:, columns].any():
                return False
            seen = True
    return seen


def _places(
    pairs: Pairs, side: str, *, with_factor: bool
) -> Iterator[tuple[str, int | None, list[Tensor] | None]]:
    """Parts of a tensor: along each dimension, then those of its matrices, then single entries."""
    dims = len(_shape(pairs[0], side))
    for dim in range(dims):
        start = _first_wrong(pairs, side, dim)
        beyond = [] if start is None else [_Part(f"from index {start} on", _beyond(start))]
        for part in (*beyond, *(_parts() if with_factor else _small_parts())):
            yield part.kind, dim, _masks(pairs, side, dim, part)
    if dims > 1:
        for kind, of in _TRIANGLES:
            yield kind, None, _triangle_masks(pairs, side, of)
        for kind, place in (("first entry", 0), ("last entry", -1)):
            yield kind, None, _entry_masks(pairs, side, place)


def _judged(pairs: Pairs, masks: list[Tensor], *, with_factor: bool) -> Cause | None:
    if with_factor:
        factor = _factor_within(pairs, masks)
        return None if factor is None else Cause("region", factor=factor)
    if not _wrong_within(pairs, masks):
        return None
    nothing = not any(bool((m & p.nonzero).any()) for p, m in zip(pairs, masks, strict=True))
    return Cause("region", Strength.WEAK, law=NOTHING if nothing else "")


def _cause(found: Cause, side: str, dim: int | None, kind: str, pairs: Pairs) -> Cause:
    right = sum(int((pair.informative & ~pair.wrong).sum()) for pair in pairs)
    return replace(found, side=side, dim=dim, kind=kind, right_entries=right)


def _shape(pair: Pair, side: str) -> tuple[int, ...]:
    return pair.source_shape if side == "input" else pair.output_shape


def _masks(pairs: Pairs, side: str, dim: int, part: _Part) -> list[Tensor] | None:
    masks = []
    for pair in pairs:
        shape = _shape(pair, side)
        if dim >= len(shape) or shape[dim] < 1:
            return None
        along = [1] * len(shape)
        along[dim] = -1
        masks.append(_of_entries(pair, side, part.of(shape[dim]).reshape(along).expand(shape)))
    return masks


_TRIANGLES: tuple[tuple[str, Callable[[Tensor], Tensor]], ...] = (
    ("diagonal", lambda t: t.triu().tril()),
    ("entries off the diagonal", lambda t: t - t.triu().tril()),
    ("upper triangle, without the diagonal,", lambda t: t.triu(1)),
    ("lower triangle, without the diagonal,", lambda t: t.tril(-1)),
    ("upper triangle", torch.triu),
    ("lower triangle", torch.tril),
)
"""Parts of a matrix, or of each matrix of a batch: what masks and factorisations are about."""


def _triangle_masks(pairs: Pairs, side: str, of: Callable[[Tensor], Tensor]) -> list[Tensor] | None:
    shapes = [_shape(pair, side) for pair in pairs]
    if any(len(shape) < 2 or min(shape[-2:]) < 2 for shape in shapes):
        return None
    return [
        _of_entries(pair, side, of(torch.ones(shape[-2:])).bool().expand(shape))
        for pair, shape in zip(pairs, shapes, strict=True)
    ]


def _entry_masks(pairs: Pairs, side: str, place: int) -> list[Tensor] | None:
    masks = []
    for pair in pairs:
        mask = torch.zeros(_shape(pair, side), dtype=torch.bool)
        if not mask.numel():
            return None
        mask.view(-1)[place] = True
        masks.append(_of_entries(pair, side, mask))
    return masks


def _of_entries(pair: Pair, side: str, mask: Tensor) -> Tensor:
    """A mask of a tensor's entries as one of the entries of the block."""
    block = pair.source_block if side == "input" else pair.output_block
    lined_up = mask.reshape(-1)
    if block.is_complex:
        lined_up = lined_up.repeat_interleave(2)
    shaped = lined_up[None, :] if side == "input" else lined_up[:, None]
    return shaped.expand_as(pair.claimed)


def _factor_within(pairs: Pairs, masks: list[Tensor]) -> float | None:
    """The one factor inside the masks, if everything outside of them is right."""
    if all(bool(mask.all()) for mask in masks):
        return None
    factors = []
    for pair, mask in zip(pairs, masks, strict=True):
        inside = mask & pair.nonzero
        if pair.is_wrong and not ((pair.wrong & mask).any() and ((~mask & pair.nonzero).any() or mask.all())):
            return None
        if inside.any():
            c = factor_of(pair.claimed[inside], pair.true[inside])
            factors.append(0.0 if c is None or not pair.claimed[inside].any() else c)
    if not factors or not same_everywhere(factors, SAME_FACTOR):
        return None
    factor = factors[0]
    entries = sum(int((mask & pair.nonzero).sum()) for pair, mask in zip(pairs, masks, strict=True))
    if factor != 0 and entries < 2 * len(factors):
        return None
    for pair, mask in zip(pairs, masks, strict=True):
        explained = torch.where(mask, factor * pair.true, pair.true)
        bound = torch.where(mask, abs(factor) * pair.bound, pair.bound)
        if not pair.explained_by(explained, bound):
            return None
    return factor


def _wrong_within(pairs: Pairs, masks: list[Tensor]) -> bool:
    """Whether every informative row or column inside the masks is wrong, and nothing outside is."""
    if len(wrong_ones(pairs)) < len(pairs):
        return False
    for pair, mask in zip(pairs, masks, strict=True):
        if (pair.wrong & ~mask).any() or not (~mask & pair.nonzero).any():
            return False
        lines = 0 if bool((mask == mask[:1]).all()) else 1
        asked, told = (pair.informative & mask).any(dim=lines), (pair.wrong & mask).any(dim=lines)
        if not asked.any() or not torch.equal(asked, told):
            return False
    return True
