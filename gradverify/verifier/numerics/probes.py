"""Random probes from one fixed pool: tangents for the inputs, cotangents for the outputs.

A pool, because drawing anew costs more than the rest of a small problem's proof, and because the same probes
come back with the same key.
"""

from __future__ import annotations

import math
from functools import cache, lru_cache

import torch
from torch import Tensor

from gradverify.verifier.numerics.flat import Layout

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


def tangent_of(x: Tensor, inputs: Layout, key: int, *, short: bool = True) -> Tensor:
    """A direction in which every entry moves by about its own size; short binary numbers all, if wanted.

    Entries that are not finite stay where they are. Not `short` is for who asks for tolerances.
    """
    parts = [sizes_of(part, WIDE if short else LESS_WIDE) for part in inputs.cut(x)]
    size = torch.cat(parts) if len(parts) > 1 else parts[0]
    if short:
        size.log2_().floor_().exp2_()
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
