"""Random probes from one fixed pool: tangents for the inputs, cotangents for the outputs.

A pool, because drawing anew costs more than the rest of a small problem's proof, and because the same probes
come back with the same key.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from gradverify.verifier.numerics.flat import Layout, tensor_of

POOL = 2**17
"""Length of the fixed pool of probe values; larger vectors repeat it."""

STRIDE = 7919
"""Entries of the pool between the probes of one key and those of the next."""

KEPT = 4096
"""Probes up to this many entries are kept by shape, since the same shapes come again."""

TANGENT_GRID = 2.0**-12
"""Tangents are short binary numbers, so that steps along them are exact and polynomials stay exact."""

SAMPLE = 255
"""Entries that are asked for the typical size of an input: a tenth more or less does not matter, and the
median of 10^5 takes as long as all else that is done with them."""

FEW = 64
"""Up to this many entries are looked at as plain numbers, which takes less than asking torch three times."""

WIDE = 256.0
"""Up to this ratio of two entries' sizes each moves by its own; beyond it, small ones move by more."""

LESS_WIDE = 16.0
"""The same for who asks for tolerances: an error by an entry near zero is seen by what that moves. At 4
samples of `ctc_loss` and `svd_lowrank` of PyTorch's operator database do not close any more, at 8 one."""


def tangent_of(x: Tensor, inputs: Layout, key: int) -> Tensor:
    """A direction in which every entry moves by about its own size (N entries), all short binary numbers.

    Entries that are not finite stay where they are.
    """
    parts = [sizes_of(part) for part in inputs.cut(x)]
    size = (torch.cat(parts) if len(parts) > 1 else parts[0]).log2_().floor_().exp2_()
    return size.mul_(_of_pool(_short_pool(), x.numel(), key * STRIDE))


def sizes_of(x: Tensor, wide: float = WIDE) -> Tensor:
    """By how much each entry of one input is to move: its own size, within `wide` of the typical one.

    Fresh, of the shape of `x`; zero for what is not finite.
    """
    size = x.abs()
    count = size.numel()
    if not count:
        return size
    if count <= FEW:
        sizes = size.reshape(-1).tolist()
        low, high = min(sizes), max(sizes)
        if not math.isfinite(sum(sizes)):  # one of them is not a number, say, which max may pass over
            high = math.inf
    else:
        low, high = [bound.item() for bound in size.aminmax()]
    if low > 0 and high <= wide * low:
        return size
    if count <= FEW and low > 0 and high < math.inf:
        typical = sorted(sizes)[(count - 1) // 2]
    else:
        typical = _typical(size, all_moving=low > 0 and high < math.inf)
    finite = None if high < math.inf else size.isfinite()
    size.clamp_(typical / wide, typical)
    return size if finite is None else torch.where(finite, size, 0.0)


def _typical(size: Tensor, *, all_moving: bool) -> float:
    """The median of the sizes that are finite and not zero, or of a sample of them."""
    few = size.take(_sampled(size.numel())) if size.numel() > SAMPLE else size
    moving = few if all_moving else _moving(few)
    if not moving.numel():
        moving = _moving(size)
    return moving.median().item() if moving.numel() else 1.0


def _moving(size: Tensor) -> Tensor:
    return size[(size > 0) & (size < math.inf)]


@lru_cache(maxsize=256)
def _sampled(count: int) -> Tensor:
    """Random places: at regular ones there may be a column that is all zeros."""
    return torch.randint(count, (SAMPLE,), generator=torch.Generator().manual_seed(count))


def short_values(shape: tuple[int, ...], start: int) -> Tensor:
    """Signed short binary numbers between 0.5 and 1.5 in size, from a place of the pool on.

    A view of the pool: not to be written to.
    """
    count = math.prod(shape)
    return (_kept_short_values if count <= KEPT else _short_values)(shape, start)


def _short_values(shape: tuple[int, ...], start: int) -> Tensor:
    return _of_pool(_short_pool(), math.prod(shape), start).view(shape)


_kept_short_values = lru_cache(maxsize=256)(_short_values)
"""Views of the pool: finding them again takes less than making them."""


def signed_values(count: int, key: int) -> Tensor:
    """`count` signed values with magnitudes in [0.5, 1.5) from the pool; full mantissas."""
    return _of_pool(_pool(), count, key * STRIDE)


def _of_pool(pool: Tensor, count: int, start: int) -> Tensor:
    start %= POOL
    if start + count <= POOL:
        return pool[start : start + count]
    return pool.roll(-start).repeat(count // POOL + 1)[:count]


@cache
def _pool() -> Tensor:
    generator = torch.Generator().manual_seed(20_263)
    magnitude = torch.rand(POOL, generator=generator, dtype=torch.float64) + 0.5
    sign = torch.randint(0, 2, (POOL,), generator=generator) * 2 - 1
    return magnitude * sign


@cache
def _short_pool() -> Tensor:
    return (_pool() / TANGENT_GRID).round() * TANGENT_GRID


class Cotangent(NamedTuple):
    """One random grad_output before it is weighed."""

    values: Tensor
    """A vector of what it is defined for: not to be written to."""
    only: int | None
    """The one output that it is defined for, by number; None for all of them."""
    rows: slice
    """Where that lies among all rows."""
    scale: float
    """Its size, times the root of the number of rows that it weighs."""

    def weighed(self, size: Tensor) -> Tensor:
        """The same with every row divided by what it counts (M entries)."""
        return self.values / (size if self.only is None else size[self.rows])

    def shaped(self, values: Tensor, outputs: Layout) -> Sequence[Tensor | None]:
        """A grad_output for every output, None for those that stay undefined."""
        if self.only is None:
            return outputs.shaped(values)
        block = outputs.blocks[self.only]
        own = values.view(block.shape) if block.is_plain else tensor_of(values, block)
        return [own if number == self.only else None for number in range(len(outputs.blocks))]


def cotangents_of(
    outputs: Layout, magnitudes: tuple[float, ...], unit: float, keys: tuple[int, ...] = (0,)
) -> Sequence[Cotangent]:
    """Cotangents whose weighed rows are of such magnitudes where J v is of ordinary size.

    They will be divided by differences, which are `unit` times J v. One for all outputs at each magnitude;
    of several outputs, one for all, and one for each alone. `keys` choose the random numbers.
    """
    lengths, sizes = tuple(outputs.lengths), tuple([m * unit for m in magnitudes])
    return (_kept_cotangents if outputs.size <= KEPT else _cotangents)(lengths, sizes, keys)


def _cotangents(
    lengths: tuple[int, ...], sizes: tuple[float, ...], keys: tuple[int, ...]
) -> Sequence[Cotangent]:
    count = sum(lengths)
    if len(lengths) == 1:
        return [_cotangent(key, slice(0, count), size, None) for key, size in zip(keys, sizes, strict=False)]
    stops = list(accumulate(lengths))
    rows = [slice(stop - length, stop) for stop, length in zip(stops, lengths, strict=True)]
    numbered = [k for k, length in enumerate(lengths) if length]
    each = [_cotangent(keys[0] + 7 * n, rows[k], sizes[-1], k) for n, k in enumerate(numbered, 1)]
    return [_cotangent(keys[0], slice(0, count), sizes[0], None), *each]


_kept_cotangents = lru_cache(maxsize=256)(_cotangents)
"""Multiplied once for all: a small problem's proof is that much cheaper."""


def _cotangent(key: int, rows: slice, size: float, only: int | None) -> Cotangent:
    count = rows.stop - rows.start
    return Cotangent(signed_values(count, key + 1) * size, only, rows, abs(size) * math.sqrt(count))
