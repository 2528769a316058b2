"""Random probes from one fixed pool: tangents for the inputs, cotangents for the outputs.

A pool, because drawing anew costs more than the rest of a small problem's proof, and because the same probes
come back with the same key.
"""

from __future__ import annotations

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


def tangent_of(x: Tensor, inputs: Layout, key: int) -> Tensor:
    """A direction in which every entry moves by about its own size, short binary numbers all."""
    size = torch.ones_like(x)
    for block in inputs.blocks:
        part = x[block.start : block.stop].abs()
        moving = part[part.isfinite() & (part > 0)]
        if not moving.numel():
            continue
        typical = moving.median()
        low, high = part.min(), part.max()
        if bool(high <= WIDE * low):
            size[block.start : block.stop] = part
        else:
            size[block.start : block.stop] = part.clamp(typical / WIDE, typical)
    size = torch.where(x.isfinite(), torch.exp2(size.log2().floor()), 0.0)
    grid = (signed_values(x.numel(), key) / TANGENT_GRID).round() * TANGENT_GRID
    return size * grid


def signed_values(count: int, key: int) -> Tensor:
    """`count` signed values with magnitudes in [0.5, 1.5) from the pool; full mantissas."""
    pool = _pool()
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
