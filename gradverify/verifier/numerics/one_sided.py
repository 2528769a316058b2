"""Entries where backward is no number at an end of forward's domain, though forward has a slope there.

At x = 0 the derivative of x**1.5 is 0, by all points that forward takes, and p * y / x makes it NaN. No
central difference tells it: on the other side forward is no number either. So the slope is taken from one
side, at three steps, and is finite where it settles: that of a root or a logarithm grows from each step to
the next.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gradverify.verifier.numerics.compare import Comparison, vague
from gradverify.verifier.numerics.jacobian import FIRST_STEP, KINK_STEPS, NumericalJacobian
from gradverify.verifier.numerics.sampling import Sampler

STEPS = (FIRST_STEP, *KINK_STEPS)
"""In units of the input's scale, the largest first; from each to the next one the slope must settle."""

SETTLES = 0.5
"""Share of its last change by which a slope that has a limit changes at the next step. That of x * log(x) at
zero changes by as much each time."""

MOST_COLUMNS = 64
"""Inputs that are asked about; those after them stay uncovered."""


def with_ends(
    sampler: Sampler, comparison: Comparison, measured: NumericalJacobian
) -> tuple[Comparison, NumericalJacobian]:
    """Both with the entries that are no number where forward ends and has a finite slope: these are wrong.

    M × N. 18 forwards for each input at which backward is no number and nothing is known of forward.
    """
    lost = ~comparison.analytical.isfinite() & measured.error.isinf()
    columns = lost.any(dim=0).nonzero().flatten().tolist()[:MOST_COLUMNS]
    if not columns or not bool(sampler.centre.isfinite().all()):
        return comparison, measured
    slopes, ends = _slopes_from_one_side(sampler, columns)
    unclear = vague(measured, sampler.problem.outputs)[:, columns] & ~ends
    # 0 · inf is NaN: an output by which the slope is infinite spoils the gradients of all of them.
    found = torch.zeros_like(lost)
    found[:, columns] = lost[:, columns] & ends & ~unclear.any(dim=0, keepdim=True)
    value = measured.value.clone()
    value[:, columns] = torch.where(found[:, columns], slopes, value[:, columns])
    nonfinite = comparison.nonfinite | found
    return replace(comparison, nonfinite=nonfinite, numerical=value), replace(measured, value=value)


def _slopes_from_one_side(sampler: Sampler, columns: list[int]) -> tuple[Tensor, Tensor]:
    """The slopes (M × columns) on the one side that forward takes, and where they settle."""
    scales = sampler.scales[columns]
    several = [sampler.sample(columns, step * scales) for step in STEPS]
    left, right = (torch.stack([getattr(s, side) for s in several]) for side in ("left", "right"))
    ends, slopes = torch.zeros_like(left[0], dtype=torch.bool), torch.zeros_like(left[0])
    for own, other in ((left, right), (right, left)):
        alone = own.isfinite().all(dim=0) & ~other.isfinite().any(dim=0)
        before, after = (own[1] - own[0]).abs(), (own[2] - own[1]).abs()
        noise = torch.stack([2 * sampler.own / s.step for s in several[1:]]).sum(dim=0)
        settled = alone & (after <= SETTLES * before + noise)
        ends, slopes = ends | settled, torch.where(settled, own[2], slopes)
    return slopes.mT, ends.mT
