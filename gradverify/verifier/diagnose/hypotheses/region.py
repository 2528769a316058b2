"""Wrong in one part of a tensor only: a slice, a tail, all but the first slice, what is off the diagonal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gradverify.verifier.diagnose.cause import Cause, Strength
from gradverify.verifier.diagnose.evidence import Pair, Pairs, has_other_sizes, same_everywhere, wrong_ones
from gradverify.verifier.diagnose.hypotheses.factor import SAME_FACTOR, factor_of

TAILS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Widths of vectorised loops and of blocks whose remainder may be forgotten."""

LEAST_BEYOND = 4
"""Slices on either side of an index from which on a gradient is wrong: fewer are named otherwise."""

PARTS = ("first", "last", "all but the first", "all but the last", "odd", "even")
"""Of the slices along a dimension."""

OFF_DIAGONAL = "entries off the diagonal"


def not_summed(pairs: Pairs) -> Cause | None:
    """The input is broadcast over a dimension of the output, and one slice was taken instead of the sum."""
    if all(pair.claimed.shape[1] >= pair.claimed.shape[0] for pair in pairs):
        return None
    for dim in range(len(pairs[0].output_shape)):
        for kind in ("first", "last"):
            masks = _masks(pairs, "output", dim, f"all but the {kind}")
            if masks is not None and _factor_within(pairs, masks) == 0.0:
                return Cause("not-summed-over-broadcast", dim=dim, kind=kind)
    return None


def region(pairs: Pairs) -> Cause | None:
    """Wrong by one factor in a part of a tensor that is the same at all points, right elsewhere."""
    if not has_other_sizes(pairs):
        return None
    for side in ("input", "output"):
        for kind, dim, masks in _places(pairs, side):
            factor = None if masks is None else _factor_within(pairs, masks)
            if factor is not None and masks is not None:
                right = sum(int((pair.informative & ~pair.wrong).sum()) for pair in pairs)
                is_lost = factor == 0 and side == "input" and _is_reached_otherwise(pairs, masks)
                name, strength = ("missing-term", Strength.WEAK) if is_lost else ("region", Strength.STRONG)
                return Cause(name, strength, factor, side=side, dim=dim, kind=kind, right_entries=right)
    return None


def _is_reached_otherwise(pairs: Pairs, masks: Sequence[Tensor]) -> bool:
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


def _places(pairs: Pairs, side: str) -> Iterator[tuple[str, int | None, list[Tensor] | None]]:
    """Parts of a tensor along each dimension, then of its matrices: a name, the dimension, a mask a point."""
    shapes = [_shape(pair, side) for pair in pairs]
    for dim in range(len(shapes[0])):
        start = _first_wrong(pairs, side, dim)
        beyond = [] if start is None else [f"from index {start} on"]
        tails = [f"remainder after groups of {width}" for width in TAILS]
        for kind in (*beyond, *PARTS, *tails):
            yield kind, dim, _masks(pairs, side, dim, kind)
    if all(len(shape) > 1 and min(shape[-2:]) > 1 for shape in shapes):
        off = [~torch.eye(*shape[-2:], dtype=torch.bool).expand(shape) for shape in shapes]
        yield OFF_DIAGONAL, None, [_of_entries(p, side, mask) for p, mask in zip(pairs, off, strict=True)]


def _part(kind: str, length: int) -> Tensor:
    """The indices (bool) of a dimension that a part with this name has."""
    places = torch.arange(length)
    match kind.split():
        case ["first"]:
            return places == 0
        case ["last"]:
            return places == length - 1
        case ["all", "but", "the", other]:
            return ~_part(other, length)
        case ["odd" | "even"]:
            return places % 2 == (kind == "odd")
        case ["from", "index", start, "on"]:
            return places >= int(start)
        case [*_, width]:
            return places >= length - length % int(width)
        case _:
            raise ValueError(kind)


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


def _shape(pair: Pair, side: str) -> tuple[int, ...]:
    return pair.source_shape if side == "input" else pair.output_shape


def _masks(pairs: Pairs, side: str, dim: int, kind: str) -> list[Tensor] | None:
    masks = []
    for pair in pairs:
        shape = _shape(pair, side)
        if dim >= len(shape) or shape[dim] < 1:
            return None
        along = [-1 if k == dim else 1 for k in range(len(shape))]
        masks.append(_of_entries(pair, side, _part(kind, shape[dim]).reshape(along).expand(shape)))
    return masks


def _of_entries(pair: Pair, side: str, mask: Tensor) -> Tensor:
    """A mask of a tensor's entries as one of the entries of the block."""
    block = pair.source_block if side == "input" else pair.output_block
    lined_up = mask.reshape(-1)
    if block.is_complex:
        lined_up = lined_up.repeat_interleave(2)
    shaped = lined_up[None, :] if side == "input" else lined_up[:, None]
    return shaped.expand_as(pair.claimed)


def _factor_within(pairs: Pairs, masks: Sequence[Tensor]) -> float | None:
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
