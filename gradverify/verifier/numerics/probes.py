"""Random probes from one fixed pool: tangents for the inputs, cotangents for the outputs.

A pool, because drawing anew costs more than the rest of a small problem's proof, and because the same probes
come back with the same key.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from gradverify.verifier.numerics.flat import Layout

POOL = 2**17
"""Length of the fixed pool of probe values; larger vectors repeat it."""

TANGENT_GRID = 2.0**-12
"""Tangents are short binary numbers, so that steps along them are exact and polynomials stay exact."""

WIDE = 256.0
"""Up to this ratio of two entries' sizes each moves by its own; beyond it, small ones move by more."""


def tangent_of(x: Tensor, inputs: Layout, key: int, *, short: bool = True) -> Tensor:
    """A direction in which every entry moves by about its own size; short binary numbers all, if wanted.

    Entries that are not finite stay where they are.
    """
    size = x.abs()
    finite = True
    for block in inputs.blocks:
        if block.stop > block.start:
            part = size[block.start : block.stop]
            low, high = (float(v) for v in part.aminmax())
            if low > 0 and high <= WIDE * low:
                continue
            if low > 0 and high < math.inf:
                typical = part.median().item()
                part.clamp_(typical / WIDE, typical)
            else:
                finite = False
                part.copy_(_clamped(part))
    if short:
        size.log2_().floor_().exp2_()
    if not finite:
        size.nan_to_num_(0.0, 0.0, 0.0)
    return size.mul_(_of_pool(_short_pool(), x.numel(), key))


def _clamped(size: Tensor) -> Tensor:
    """Sizes within `WIDE` of the typical one; NaN for what is not finite."""
    finite = size.isfinite()
    moving = size[finite & (size > 0)]
    typical = moving.median().item() if moving.numel() else 1.0
    return torch.where(finite, size.clamp(typical / WIDE, typical), torch.nan)


def signed_values(count: int, key: int) -> Tensor:
    """`count` signed values with magnitudes in [0.5, 1.5) from the pool; full mantissas."""
    return _of_pool(_pool(), count, key)


def _of_pool(pool: Tensor, count: int, key: int) -> Tensor:
    start = (key * 7919) % POOL
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
