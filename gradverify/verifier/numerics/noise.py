"""The noise in f: what its own rounding must be, and what sixth differences show of more."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from gradverify.verifier.numerics.flat import Layout

ENOUGH_SAMPLES = 4
"""Sixth differences that must be at hand before the rows of an output are pooled."""

SHRINKS = 8.0
"""A kink's sixth difference shrinks as the step does, by 64 or more from level to level, curvature's faster:
what shrinks by less than this is noise."""

TINIEST = torch.finfo(torch.float64).tiny


def own_noise(centre: Tensor, outputs: Layout) -> Tensor:
    """The rounding of f itself in the dtype in which it is returned, for each row (M).

    A row that is exactly zero does not tell how large the numbers were that cancelled or underflowed: it
    gets the rounding of its output's largest value.
    """
    size = centre.abs().nan_to_num(0.0, 0.0, 0.0)
    return outputs.rounding * torch.where(size > 0, size, typical_values(centre, outputs))


def typical_values(centre: Tensor, outputs: Layout) -> Tensor:
    """The largest finite value of the output that each row belongs to (M)."""
    typical = centre.abs().nan_to_num(0.0, 0.0, 0.0)
    for rows in outputs.slices:
        typical[rows] = typical[rows].max()
    return typical


def noise_floor(samples: Tensor, own: Tensor, outputs: Layout) -> Tensor:
    """Noise of f for each row (M): its own rounding, and what the samples (columns × M) show.

    One sample may be small by luck, so samples are pooled over the columns of a row and over the rows of an
    output. The median keeps a few columns that step over a kink out of it.
    """
    if not samples.shape[0]:
        return own
    floor = torch.maximum(own, robust_noise(samples))
    for rows in outputs.slices:
        touched = samples[:, rows][samples[:, rows] > 0]
        if touched.numel() >= ENOUGH_SAMPLES and rows.stop - rows.start > 1:
            pooled = torch.minimum(touched.square().mean().sqrt(), 3 * touched.median())
            # A row far smaller than its neighbours has its own, smaller noise: pool relative to magnitude.
            relative = own[rows] / own[rows].max().clamp_min(TINIEST)
            floor[rows] = torch.maximum(floor[rows], pooled * relative)
    return floor


def robust_noise(samples: Tensor) -> Tensor:
    """min(rms, 3 · median) over the positive samples of each row; samples are columns × M."""
    positive = torch.where(samples > 0, samples, torch.nan)
    median = positive.nanmedian(dim=0).values.nan_to_num(0.0)
    rms = positive.square().nanmean(dim=0).sqrt().nan_to_num(0.0)
    return torch.minimum(rms, 3 * median)


def persistent_noise(levels: Sequence[Tensor], floor: Tensor, own: Tensor, outputs: Layout) -> Tensor:
    """The noise of f, separated from kinks and curvature: noise does not shrink with the step, they do.

    `levels` are sixth differences (columns × M) at steps each 64 or more times smaller than the one before;
    `floor` is what was thought of the noise so far.
    """
    noise = own
    for before, after in pairwise(noise_floor(level, own, outputs) for level in levels):
        stays = after >= before / SHRINKS
        noise = torch.maximum(noise, torch.where(stays, 2 * torch.maximum(before, after), 0.0))
    return torch.minimum(floor, noise)
