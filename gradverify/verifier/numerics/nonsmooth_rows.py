"""Kinks where several coordinates meet: the slopes on both sides along one of them are not all there are.

Where three numbers are equal, the middle one of them does not rise with any single number moved up, and a
backward that gives it to one of the three returns the derivative of one of the smooth pieces that meet there.
Where what ties are sums of the coordinates (scores of a token that is zero), the pieces are cones around the
point. They are found beside the point: all coordinates move in a random direction, each by another amount,
and the slope is measured there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradverify.verifier.numerics.jacobian import NumericalJacobian
from gradverify.verifier.numerics.sampling import Sampler

BESIDE = 2.0**-12
"""How far the coordinates move, in units of the smallest of their scales."""

STEP = 2.0**-26
"""Half the distance over which a slope is measured there: far below the gaps between them."""

DIRECTIONS = 256
"""Random directions at most. The cone in which the first two of four random scores are the largest was missed
by 128 of them once in 40 times."""

ROOM = 0.1
"""Share of the range of slopes, and of the claim, by which a claim may lie outside: pieces are curved."""


def explained_by_other_pieces(
    sampler: Sampler, measured: NumericalJacobian, claimed: Tensor, wrong: Tensor
) -> Tensor:
    """Entries of `wrong` (bool, M × N) whose claim lies among the slopes beside a joint kink."""
    kinked = measured.kink > 0
    asked = wrong & kinked & (kinked.sum(dim=1, keepdim=True) > 1)
    result = torch.zeros_like(wrong)
    for column in asked.any(dim=0).nonzero().flatten().tolist():
        rows, claim = asked[:, column], claimed[:, column]
        together = kinked[rows].any(dim=0).nonzero().flatten()
        unit = measured.scale[together].min().item()
        generator = torch.Generator().manual_seed(column)
        lowest = torch.full_like(measured.centre, torch.inf)
        highest = -lowest
        for _ in range(DIRECTIONS):
            beside = sampler.x.clone()
            way = torch.randn(len(together), generator=generator, dtype=torch.float64)
            beside[together] += BESIDE * unit * way
            slope = _slope(sampler, beside, column, STEP * unit)
            lowest = torch.minimum(lowest, slope.nan_to_num(torch.inf, torch.inf, torch.inf))
            highest = torch.maximum(highest, slope.nan_to_num(-torch.inf, -torch.inf, -torch.inf))
            room = ROOM * torch.maximum(highest - lowest, claim.abs())
            result[:, column] = rows & (claim >= lowest - room) & (claim <= highest + room)
            if torch.equal(result[:, column], rows):
                break
    return result


def _slope(sampler: Sampler, x: Tensor, column: int, step: float) -> Tensor:
    values = []
    for sign in (1, -1):
        moved = x.clone()
        moved[column] += sign * step
        values.append(sampler.value_at(moved))
    return (values[0] - values[1]) / (2 * step)
