"""Comparing two Jacobians entry by entry, with room for every measured error.

What a difference has to pass before it counts: a second measurement, which shares nothing with the first.

And a kink where several coordinates meet: the slopes on both sides along one of them are not all there are.
Where three numbers are equal, the middle one of them does not rise with any single number moved up, and a
backward that gives it to one of the three returns the derivative of one of the smooth pieces that meet there.
Where what ties are sums of the coordinates (scores of a token that is zero), the pieces are cones around the
point. They are found beside the point: all coordinates move in a random direction, each by another amount,
and the slope is measured there.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from gradverify.verifier.numerics.jacobian import (
    LARGEST_NOISE,
    VISIBLE_KINK,
    NumericalJacobian,
    converged,
    measured_error,
    natural_slope,
)
from gradverify.verifier.numerics.problem import Layout
from gradverify.verifier.numerics.sampling import Sampler, Samples
from gradverify.verifier.numerics.tolerance import EPSILON, SAFETY, Tolerance, distance, is_known

COVERED = 1e-4
"""An entry is covered when an error of this share of its own size, or of its block's, would have shown."""

NEGLIGIBLE = 1e-8
"""A derivative so small that moving an input by its whole size changes the output by less than this share
of it counts as zero on both sides."""

UNSEEN = 64
"""Where f's operations cannot be seen, a difference by which a step as large as the input itself moves the
output by less than so many roundings of its largest value is one of rounding: inside f, numbers of that size
may have been rounded before they cancel, to the dtype of the output at least, if that is float32."""

SINGLE = torch.finfo(torch.float32).eps
"""The coarsest rounding of an output that is allowed for so."""

VAGUE = 1e-3
"""A slope is known to be finite if it is measured to within this share of itself, or of |f|/|x|."""


@dataclass(frozen=True)
class Comparison:
    """The analytical against the numerical Jacobian. All tensors are M × N."""

    analytical: Tensor
    numerical: Tensor
    bound: Tensor
    """Differences below this are explained by measured errors; infinite where nothing is known."""
    wrong: Tensor
    """Different by more than the bound and the tolerance."""
    imprecise: Tensor
    """Different by more than the bound, but within the tolerance."""
    nonfinite: Tensor
    """Backward gave NaN or infinity where the derivative, or at a kink each one-sided slope, is finite."""
    kinks: Tensor
    """At a kink, with a gradient between the one-sided slopes: neither right nor wrong."""
    covered: Tensor
    """A relative error of `COVERED` would have been seen."""
    visible: Tensor
    """The smallest relative error that would have been seen, entry by entry."""
    not_judged: Tensor
    """Different, but the rounding of the target's own operations explains it."""

    @property
    def difference(self) -> Tensor:
        """|analytical - numerical|."""
        return (self.analytical - self.numerical).abs()

    @property
    def conflicts(self) -> Tensor:
        """Entries with which something is wrong."""
        return self.wrong | self.imprecise | self.nonfinite

    @property
    def telling(self) -> Tensor:
        """Entries that are covered and not zero: a wrong factor would have shown there."""
        return self.covered & (self.numerical.abs() > self.bound)

    @property
    def smallest_visible(self) -> float | None:
        """The relative error that every covered entry would have shown.

        None where nothing is covered, or where all derivatives that are known vanish beside one of their
        block: no number of that size shows an error of less than a rounding of it.
        """
        judged = self.covered & ~self.kinks & ~self.wrong
        visible = self.visible[judged & (self.visible >= EPSILON)]
        return visible.max().item() if visible.numel() else None

    @property
    def is_settled(self) -> bool:
        """Whether every entry is known, and right."""
        return not bool((self.conflicts | self.kinks).any()) and bool(self.covered.all())


def compare(
    analytical: Tensor,
    measured: NumericalJacobian,
    inputs: Layout,
    outputs: Layout,
    tolerance: Tolerance,
) -> Comparison:
    """Judge every entry: wrong only beyond measured error *and* tolerance."""
    numerical = measured.value
    bound = tolerance.explained(measured.error)
    at_kink = measured.kink > 0
    difference = distance(analytical, numerical)
    finite = analytical.isfinite()
    known = measured.error.isfinite()
    # At a kink what lies between the one-sided slopes is right, or beyond by no more than their errors.
    room = measured.kink
    allowed = tolerance.allowed(numerical.abs() + room, inputs)
    rounding = finest_rounding(outputs)[:, None]
    # Where an output of low precision is constant, numbers of the size of one may have swallowed a change.
    swallowed = measured.flat & (rounding > EPSILON) & (difference <= UNSEEN * rounding / measured.scale)
    conflict = known & finite & (difference > bound + room)
    doubtful = conflict & swallowed
    conflict &= ~swallowed
    unknown = conflict & ~is_known(numerical, analytical, bound, allowed)
    conflict &= ~unknown
    # 0 · inf is NaN: an input by which one output has an infinite slope spoils the gradients of all of them.
    nonfinite = known & ~finite & ~vague(measured, outputs).any(dim=0, keepdim=True)
    scale = torch.maximum(numerical.abs(), _block_rms(numerical, known, inputs, outputs))
    negligible = measured.flat | _negligible(analytical, measured, bound, outputs)
    return Comparison(
        analytical=analytical,
        numerical=numerical,
        bound=torch.where(known, bound + room, torch.inf),
        wrong=conflict & (difference > allowed + room),
        imprecise=conflict & (difference <= allowed + room),
        nonfinite=nonfinite,
        kinks=at_kink & ~conflict,
        covered=known & finite & ~doubtful & ~unknown & (negligible | (bound <= COVERED * scale)),
        visible=torch.where(negligible, torch.zeros_like(bound), bound / scale.clamp_min(1e-300)),
        not_judged=torch.zeros_like(known),
    )


def vague(measured: NumericalJacobian, outputs: Layout) -> Tensor:
    """Entries (bool, M × N) that are not known well enough to say that slopes are finite there."""
    slope = natural_slope(measured.centre, measured.scale, outputs)
    known = measured.error.isfinite() & measured.value.isfinite()  # where forward is infinite, its slope is
    return ~(known & (measured.error <= VAGUE * torch.maximum(measured.value.abs(), slope)))


def finest_rounding(outputs: Layout) -> Tensor:
    """The relative rounding of each output's dtype (M), at most float32's.

    Of 16 bits many roundings would be half of a value: steps and slopes are distinguished in another way.
    """
    return torch.where(outputs.rounding <= SINGLE, outputs.rounding, 0.0).clamp_min(EPSILON)


def _block_rms(numerical: Tensor, known: Tensor, inputs: Layout, outputs: Layout) -> Tensor:
    """Root mean square of the known entries of each (output, input) block, spread over the block."""
    result = torch.zeros_like(numerical)
    for rows, columns in product(outputs.slices, inputs.slices):
        part = numerical[rows, columns][known[rows, columns]]
        if part.numel():
            result[rows, columns] = part.square().mean().sqrt()
    return result


def _negligible(analytical: Tensor, measured: NumericalJacobian, bound: Tensor, outputs: Layout) -> Tensor:
    """Both sides indistinguishable from zero, with an error far below the natural slope |f|/|x|."""
    small = (analytical.abs() <= bound) & (measured.value.abs() <= bound)
    return small & (bound <= NEGLIGIBLE * natural_slope(measured.centre, measured.scale, outputs))


INDEPENDENT_STEPS = (0.41421356237309515, 0.7320508075688772)
"""Steps of the second measurement, in units of the step that was used: smaller, so that they meet no kink
which the first one did not. They are √2 - 1 and √3 - 1, which have no ratio with it, nor with each other: an
oscillation that every other step meets at the same phase is met at different ones."""

CANCELLED = 2.0**-13
"""A value below this share of its output's largest may be what is left of numbers of that share."""

SAME = 0.3
"""Two measured slopes are the same one within this share of the slope, and of the difference that it shows,
beside their errors."""


BESIDE = 2.0**-12
"""How far the coordinates move, in units of the smallest of their scales."""

STEP = 2.0**-26
"""Half the distance over which a slope is measured there: far below the gaps between them."""

DIRECTIONS = 256
"""Random directions at most. The cone in which the first two of four random scores are the largest was missed
by 128 of them once in 40 times."""

NEARER = 0.25
"""Share of that distance at which the slope is measured again: what has changed tells how curved it is."""

CURVED = 0.1
"""Slopes that differ by more than this share of them are of different pieces, not of a curved one."""


def remeasure(
    sampler: Sampler,
    measured: NumericalJacobian,
    claimed: Tensor,
    conflicts: Tensor,
    bound: Tensor,
    count: int,
) -> Tensor:
    """Conflicts (bool, M × N) that show the same difference at steps that share nothing with the first ones.

    A difference made by noise or by luck does not recur, a wrong formula does. At a kink it is the jump of
    the slope that must be the same. `bound` (M × N) is what the first measurement left unknown; a second one
    that knows less has no digits, and repeats nothing. Only the first `count` columns were measured;
    conflicts in others stay.
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
    allowed = bound.mT[columns]
    for factor in INDEPENDENT_STEPS:
        samples = sampler.sample(columns, factor * steps)
        error = SAFETY * measured_error(samples, measured.noise, sampler.x[columns, None], sampler.own)
        differs = (samples.derivative - claim).abs() > error
        differs &= is_known(samples.derivative, claim, error, allowed)
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
        rounding = SAFETY * sampler.own / (STEP * unit)
        lowest = measured.value[:, column] - measured.kink[:, column]
        highest = measured.value[:, column] + measured.kink[:, column]
        for _ in range(DIRECTIONS):
            way = BESIDE * unit * torch.randn(len(together), generator=generator, dtype=torch.float64)
            far = _slope_beside(sampler, together, way, column, STEP * unit)
            near = _slope_beside(sampler, together, NEARER * way, column, STEP * unit)
            bent = (far - near).abs()
            room = rounding + torch.where(bent <= CURVED * near.abs(), SAFETY * bent, 0.0)
            lowest = torch.minimum(lowest, (near - room).nan_to_num(torch.inf, torch.inf, torch.inf))
            highest = torch.maximum(highest, (near + room).nan_to_num(-torch.inf, -torch.inf, -torch.inf))
            result[:, column] = rows & (claim >= lowest) & (claim <= highest)
            if torch.equal(result[:, column], rows):
                break
    return result


def _slope_beside(sampler: Sampler, together: Tensor, way: Tensor, column: int, step: float) -> Tensor:
    """The slope along a coordinate at a point beside x, to which some coordinates have moved."""
    beside = sampler.x.clone()
    beside[together] += way
    return _slope(sampler, beside, column, step)


def _slope(sampler: Sampler, x: Tensor, column: int, step: float) -> Tensor:
    values = []
    for sign in (1, -1):
        moved = x.clone()
        moved[column] += sign * step
        values.append(sampler.value_at(moved))
    return (values[0] - values[1]) / (2 * step)
