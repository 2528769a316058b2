"""Comparing two Jacobians entry by entry, with room for every measured error."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.jacobian import NumericalJacobian, natural_slope
from gradverify.verifier.numerics.tolerance import EPSILON, UNDERFLOW, Tolerance, is_known

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
    difference = (analytical - numerical).abs()
    finite = analytical.isfinite()
    known = measured.error.isfinite()
    # At a kink what lies between the one-sided slopes is right, or beyond by no more than their errors.
    room = measured.kink
    allowed = tolerance.allowed(numerical.abs() + room, inputs)
    rounding = finest_rounding(outputs)[:, None]
    # Where an output of low precision is constant, numbers of the size of one may have swallowed a change.
    swallowed = measured.flat & (rounding > EPSILON) & (difference <= UNSEEN * rounding / measured.scale)
    conflict = known & finite & (difference > (bound + room).clamp_min(UNDERFLOW))
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
