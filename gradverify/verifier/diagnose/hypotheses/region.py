"""Wrong in one part of a tensor only: a slice, a tail, all but the first slice, what is off the diagonal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from gradverify.verifier.diagnose.cause import Cause
from gradverify.verifier.diagnose.evidence import Pair, Pairs, has_other_sizes, same_everywhere, wrong_ones
from gradverify.verifier.diagnose.hypotheses.factor import SAME_FACTOR, factor_of
from gradverify.verifier.diagnose.words import cotangent, of_gradient, times_too_large

LEAST_BEYOND = 4
"""Slices on either side of an index from which on a gradient is wrong: fewer are named otherwise."""

LOST = (
    "Look at the bounds of the loop, slice or mask that backward uses there. Is something that depends on "
    "these entries taken for a constant?"
)
MULTIPLIED = "Look at what backward multiplies by there, and at the bounds of a loop, slice or mask."

Part = Callable[[Tensor, int], Tensor]
"""Which indices (bool) of a dimension are meant, by the indices and the length."""


def _remainder(width: int) -> Part:
    return lambda k, n: k >= n - n % width


FIRST, LAST = "the first slice", "the last slice"

PARTS: dict[str, Part] = {
    FIRST: lambda k, _: k == 0,
    LAST: lambda k, n: k == n - 1,
    "the slices behind the first one": lambda k, _: k > 0,
    "the slices before the last one": lambda k, n: k < n - 1,
    "the odd indices": lambda k, _: k % 2 == 1,
    "the even indices": lambda k, _: k % 2 == 0,
    # Widths of vectorised loops and of blocks whose remainder may be forgotten.
    **{f"the remainder after groups of {2**e}": _remainder(2**e) for e in range(1, 11)},
}
"""Of the slices along a dimension."""


def not_summed(pairs: Pairs) -> Cause | None:
    """The input is broadcast over a dimension of the output, and one slice was taken instead of the sum."""
    if all(pair.claimed.shape[1] >= pair.claimed.shape[0] for pair in pairs):
        return None
    name, output, g = pairs[0].name, pairs[0].output_name, cotangent(pairs[0])
    for dim in range(len(pairs[0].output_shape)):
        for one in (FIRST, LAST):
            masks = _masks(pairs, dim, PARTS[one], is_input=False)
            if masks is not None and _factor_within(pairs, [~mask for mask in masks]) == 0.0:
                return Cause(
                    "not-summed-over-broadcast",
                    f"`{name}` takes part in every slice of `{output}` along dimension {dim}, but its "
                    f"gradient comes from {one} only",
                    f"Sum over dimension {dim} of {g} instead of indexing it.",
                )
    return None


def region(pairs: Pairs) -> Cause | None:
    """Wrong by one factor in a part of a tensor that is the same at all points, right elsewhere."""
    if not has_other_sizes(pairs):
        return None
    for is_input in (True, False):
        for place, masks in _places(pairs, is_input=is_input):
            factor = None if masks is None else _factor_within(pairs, masks)
            if factor is not None and masks is not None:
                name = pairs[0].name if is_input else pairs[0].output_name
                return Cause(
                    "region",
                    f"{of_gradient(pairs[0])} is wrong only at {place} of `{name}`, where it "
                    f"{times_too_large(factor)}, and right everywhere else",
                    LOST if factor == 0 else MULTIPLIED,
                )
    return None


def _places(pairs: Pairs, *, is_input: bool) -> Iterator[tuple[str, list[Tensor] | None]]:
    """Parts of a tensor along each dimension, then of its matrices: in words, and a mask for each point."""
    shapes = [_shape(pair, is_input=is_input) for pair in pairs]
    for dim in range(len(shapes[0])):
        start = _first_wrong(pairs, dim, is_input=is_input)
        parts = {} if start is None else {f"the slices from index {start} on": _from(start)}
        for words, part in {**parts, **PARTS}.items():
            yield f"{words} along dimension {dim}", _masks(pairs, dim, part, is_input=is_input)
    if all(len(shape) > 1 and min(shape[-2:]) > 1 for shape in shapes):
        off = [~torch.eye(*shape[-2:], dtype=torch.bool).expand(shape) for shape in shapes]
        masks = [_of_entries(p, mask, is_input=is_input) for p, mask in zip(pairs, off, strict=True)]
        yield "the entries off the diagonal", masks


def _from(start: int) -> Part:
    return lambda k, _: k >= start


def _first_wrong(pairs: Pairs, dim: int, *, is_input: bool) -> int | None:
    """The index from which on slices of a dimension are wrong, if it is one at all points and far inside."""
    starts = set()
    for pair in wrong_ones(pairs):
        shape = _shape(pair, is_input=is_input)
        if dim >= len(shape):
            return None
        lines = pair.wrong.any(dim=0 if is_input else 1)
        if (pair.source_block if is_input else pair.output_block).is_complex:
            lines = lines.reshape(-1, 2).any(dim=1)
        slices = lines.reshape(shape).movedim(dim, 0).reshape(shape[dim], -1).any(dim=1)
        start = int(slices.int().argmax())
        starts.add(start)
        if not LEAST_BEYOND <= start <= shape[dim] - LEAST_BEYOND:
            return None
    return starts.pop() if len(starts) == 1 else None


def _shape(pair: Pair, *, is_input: bool) -> tuple[int, ...]:
    return pair.source_shape if is_input else pair.output_shape


def _masks(pairs: Pairs, dim: int, part: Part, *, is_input: bool) -> list[Tensor] | None:
    masks = []
    for pair in pairs:
        shape = _shape(pair, is_input=is_input)
        if dim >= len(shape) or shape[dim] < 1:
            return None
        along = [-1 if k == dim else 1 for k in range(len(shape))]
        chosen = part(torch.arange(shape[dim]), shape[dim]).reshape(along).expand(shape)
        masks.append(_of_entries(pair, chosen, is_input=is_input))
    return masks


def _of_entries(pair: Pair, mask: Tensor, *, is_input: bool) -> Tensor:
    """A mask of a tensor's entries as one of the entries of the block."""
    lined_up = mask.reshape(-1)
    if (pair.source_block if is_input else pair.output_block).is_complex:
        lined_up = lined_up.repeat_interleave(2)
    return (lined_up[None, :] if is_input else lined_up[:, None]).expand_as(pair.claimed)


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
