"""A second measurement, which shares nothing with the first, before anybody is accused."""

from __future__ import annotations

import torch
from torch import Tensor

from gradverify.verifier.numerics.difference import Samples
from gradverify.verifier.numerics.jacobian import KnownColumns, NumericalJacobian
from gradverify.verifier.numerics.noise import own_noise, typical_values
from gradverify.verifier.numerics.problem import Problem
from gradverify.verifier.numerics.refine import LARGEST_NOISE, VISIBLE_KINK, converged, measured_error
from gradverify.verifier.numerics.sampling import Sampler
from gradverify.verifier.numerics.tolerance import SAFETY

INDEPENDENT_STEPS = (0.41421356237309515, 0.7320508075688772)
"""Steps of the confirmation, in units of the step that was used: smaller, so that they meet no kink which the
first measurement did not. They are √2 - 1 and √3 - 1, which have no ratio with it, nor with each other: an
oscillation that every other step meets at the same phase is met at different ones."""

CANCELLED = 2.0**-13
"""A value below this share of its output's largest may be what is left of numbers of that share."""

SAME = 0.3
"""Two measured slopes are the same one within this share of the slope, and of the difference that it shows,
beside their errors."""


def confirm_columns(
    problem: Problem,
    measured: NumericalJacobian,
    analytical: Tensor,
    wrong: Tensor,
    known: KnownColumns | None = None,
) -> Tensor:
    """Measure columns with conflicts again at steps that share nothing with the first measurement.

    Returns the conflicts (bool, M × N) that showed the same difference each time: a difference made by
    noise or by luck does not repeat itself, a wrong formula does. At a kink it is the jump of the slope that
    must be the same. Conflicts in columns that were known stand as they are.
    """
    count = wrong.shape[1] - (known.count if known is not None else 0)
    confirmed = wrong.clone()
    asked = wrong[:, :count]
    if not asked.any():
        return confirmed
    columns, steps = _measurements(asked, measured.step[:, :count])
    sampler = Sampler(problem, measured.centre)
    # One line for each (column, step): the entries that were measured with that step.
    mine = asked.mT[columns] & (measured.step.mT[columns] == steps[:, None])
    repeated = mine.clone()
    typical = typical_values(measured.centre, problem.outputs)
    own = own_noise(measured.centre, problem.outputs)
    first, claimed, kink = measured.value.mT[columns], analytical.mT[columns], measured.kink.mT[columns]
    for factor in INDEPENDENT_STEPS:
        samples = sampler.sample(columns, factor * steps)
        error = SAFETY * measured_error(samples, measured.noise, sampler.x[columns, None], own)
        differs = (samples.derivative - claimed).abs() > error
        # Beside a huge claim, slopes of an oscillation that was sampled too coarsely are all alike.
        size = torch.minimum((first - claimed).abs(), first.abs())
        same = (samples.derivative - first).abs() <= SAME * size + error
        smooth = differs & same & converged(samples, measured.noise, typical)
        repeated &= torch.where(kink > 0, _same_kink(samples, first, kink, own), smooth)
        repeated &= is_quiet(samples, measured.noise, measured.centre, typical)
    lost = torch.zeros_like(asked.mT)
    for line, column in enumerate(columns):
        lost[column] |= mine[line] & ~repeated[line]
    confirmed[:, :count] &= ~lost.mT
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
    moved = torch.maximum(samples.left.abs(), samples.right.abs()) * samples.step
    size = torch.maximum(centre.abs(), CANCELLED * typical)
    return samples.flat | (noise <= LARGEST_NOISE * torch.maximum(moved, size))


def _measurements(asked: Tensor, step: Tensor) -> tuple[list[int], Tensor]:
    """Every (column, step) behind a conflict, once."""
    pairs = sorted({(column, step[row, column].item()) for row, column in asked.nonzero().tolist()})
    return [column for column, _ in pairs], torch.tensor([s for _, s in pairs], dtype=torch.float64)
