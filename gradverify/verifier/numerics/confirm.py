"""A second measurement, which shares nothing with the first, before anybody is accused."""

from __future__ import annotations

import torch
from torch import Tensor

from gradverify.verifier.numerics.jacobian import KnownColumns, NumericalJacobian
from gradverify.verifier.numerics.noise import own_noise, typical_values
from gradverify.verifier.numerics.problem import Problem
from gradverify.verifier.numerics.refine import SAFETY, converged, measured_error
from gradverify.verifier.numerics.sampling import Sampler

INDEPENDENT_STEPS = (0.37, 0.71)
"""Steps of the confirmation, in units of the step that was used: no multiples of it, nor of each other, and
smaller, so that they meet no kink which the first measurement did not."""

SAME = 0.3
"""Two measured differences are the same one within this share of it, beside their errors."""


def confirm_columns(
    problem: Problem,
    measured: NumericalJacobian,
    analytical: Tensor,
    wrong: Tensor,
    known: KnownColumns | None = None,
) -> Tensor:
    """Measure columns with conflicts again at steps that share nothing with the first measurement.

    Returns the conflicts (bool, M × N) that showed the same difference each time: a difference made by
    noise or by luck does not repeat itself, a wrong formula does. Conflicts at kinks stand as they are
    (their measurement is two-sided already), and so do those in columns that were known.
    """
    count = wrong.shape[1] - (known.count if known is not None else 0)
    confirmed = wrong.clone()
    asked = wrong[:, :count] & ~(measured.kink[:, :count] > 0)
    if not asked.any():
        return confirmed
    columns, steps = _measurements(asked, measured.step[:, :count])
    sampler = Sampler(problem, measured.centre)
    # One line for each (column, step): the entries that were measured with that step.
    mine = asked.mT[columns] & (measured.step.mT[columns] == steps[:, None])
    repeated = mine.clone()
    typical = typical_values(measured.centre, problem.outputs)
    own = own_noise(measured.centre, problem.outputs)
    first, claimed = measured.value.mT[columns], analytical.mT[columns]
    for factor in INDEPENDENT_STEPS:
        samples = sampler.sample(columns, factor * steps)
        error = SAFETY * measured_error(samples, measured.noise, sampler.x[columns, None], own)
        differs = (samples.derivative - claimed).abs() > error
        same = (samples.derivative - first).abs() <= SAME * (first - claimed).abs() + error
        repeated &= differs & same & converged(samples, measured.noise, typical)
    lost = torch.zeros_like(asked.mT)
    for line, column in enumerate(columns):
        lost[column] |= mine[line] & ~repeated[line]
    confirmed[:, :count] &= ~lost.mT
    return confirmed


def _measurements(asked: Tensor, step: Tensor) -> tuple[list[int], Tensor]:
    """Every (column, step) behind a conflict, once."""
    pairs = sorted({(column, step[row, column].item()) for row, column in asked.nonzero().tolist()})
    return [column for column, _ in pairs], torch.tensor([s for _, s in pairs], dtype=torch.float64)
