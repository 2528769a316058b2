"""A second measurement of every difference, which shares nothing with the first one."""

from __future__ import annotations

import torch
from torch import Tensor

from gradverify.verifier.numerics.jacobian import NumericalJacobian
from gradverify.verifier.numerics.refine import LARGEST_NOISE, VISIBLE_KINK, converged, measured_error
from gradverify.verifier.numerics.sampling import Sampler, Samples
from gradverify.verifier.numerics.tolerance import SAFETY

INDEPENDENT_STEPS = (0.41421356237309515, 0.7320508075688772)
"""Steps of the second measurement, in units of the step that was used: smaller, so that they meet no kink
which the first one did not. They are √2 - 1 and √3 - 1, which have no ratio with it, nor with each other: an
oscillation that every other step meets at the same phase is met at different ones."""

CANCELLED = 2.0**-13
"""A value below this share of its output's largest may be what is left of numbers of that share."""

SAME = 0.3
"""Two measured slopes are the same one within this share of the slope, and of the difference that it shows,
beside their errors."""


def remeasure(
    sampler: Sampler, measured: NumericalJacobian, claimed: Tensor, conflicts: Tensor, count: int
) -> Tensor:
    """Conflicts (bool, M × N) that show the same difference at steps that share nothing with the first ones.

    A difference made by noise or by luck does not recur, a wrong formula does. At a kink it is the jump of
    the slope that must be the same. Only the first `count` columns were measured; conflicts in others stay.
    """
    asked = conflicts[:, :count]
    if not asked.any():
        return conflicts
    # One line for each (column, step) behind a conflict: the entries that were measured with that step.
    pairs = sorted({(column, measured.step[row, column].item()) for row, column in asked.nonzero().tolist()})
    columns, steps = [column for column, _ in pairs], torch.tensor([s for _, s in pairs], dtype=torch.float64)
    mine = asked.mT[columns] & (measured.step.mT[columns] == steps[:, None])
    repeated = mine.clone()
    first, claim, kink = measured.value.mT[columns], claimed.mT[columns], measured.kink.mT[columns]
    for factor in INDEPENDENT_STEPS:
        samples = sampler.sample(columns, factor * steps)
        error = SAFETY * measured_error(samples, measured.noise, sampler.x[columns, None], sampler.own)
        differs = (samples.derivative - claim).abs() > error
        # Beside a huge claim, slopes of an oscillation that was sampled too coarsely are all alike.
        size = torch.minimum((first - claim).abs(), first.abs())
        same = (samples.derivative - first).abs() <= SAME * size + error
        smooth = differs & same & converged(samples, measured.noise, sampler.typical)
        repeated &= torch.where(kink > 0, _same_kink(samples, first, kink, sampler.own), smooth)
        repeated &= is_quiet(samples, measured.noise, measured.centre, sampler.typical)
    confirmed = conflicts.clone()
    for line, column in enumerate(columns):
        confirmed[:, column] &= ~(mine[line] & ~repeated[line])
    return confirmed


def _same_kink(samples: Samples, middle: Tensor, half_jump: Tensor, own: Tensor) -> Tensor:
    """Whether both one-sided slopes are what they were."""
    allowed = SAME * half_jump + VISIBLE_KINK * own / samples.step
    left, right = samples.left - middle, samples.right - middle
    return ((left.abs() - half_jump).abs() <= allowed) & ((right.abs() - half_jump).abs() <= allowed)


def is_quiet(samples: Samples, noise: Tensor, centre: Tensor, typical: Tensor) -> Tensor:
    """Whether f's noise is small beside f and beside what f moved by: else it may be no noise at all.

    A value beside a pole stands alone at every step that leads over it, as if that were its noise. A value
    near zero may have lost digits that others of its output have.
    """
    moved = samples.steepest * samples.step
    size = torch.maximum(centre.abs(), CANCELLED * typical)
    return samples.flat | (noise <= LARGEST_NOISE * torch.maximum(moved, size))
