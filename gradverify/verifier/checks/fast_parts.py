"""Gradients that change faster than a difference quotient can follow, at declared wide values.

A fast part that is small beside f, as sin(a x)^2 / a is where `a` is large, passes for noise of f: every
step leads over many of its periods, and what is measured is the slope of the rest. Beyond 1/epsilon radians
no digit of its phase is left at all. Where what backward gives is another thing at values a little aside,
on average over both sides as well, the mismatch is no mistake's for certain. A wrong formula that is smooth
is as wrong there, and its average is what it is.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from gradverify.model import Point
from gradverify.verifier.checks.random_signs import random_signs
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.analytical import analytical_rows
from gradverify.verifier.numerics.compare import Comparison
from gradverify.verifier.numerics.jacobian import NumericalJacobian
from gradverify.verifier.numerics.remeasure import SAME

SPANS = (2.0**-13, 2.0**-15, 2.0**-17, 2.0**-24, 2.0**-34, 2.0**-44, 2.0**-50)
"""How far values are moved, relative: from below the usual step of a difference to a few units in the last
place."""


def without_fast_parts(sample: Sample, comparison: Comparison, measured: NumericalJacobian) -> Comparison:
    """The comparison (M x N) in which entries that change too fast are neither wrong nor covered."""
    accused = comparison.wrong & ~(measured.kink > 0)
    if sample.point is not Point.WIDE or not accused.any():
        return comparison
    problem, rows = sample.problem, accused.any(dim=1).nonzero().flatten()
    x = sample.inputs.flatten(problem.primals)
    claimed = comparison.analytical[rows]
    enough = SAME * (claimed - comparison.numerical[rows]).abs()
    fast = torch.zeros_like(accused)
    for number, span in enumerate(SPANS):
        way = span * x * random_signs(sample.inputs.size, sample.case.seed + number)
        left, right = (
            analytical_rows(problem, rows.tolist(), sample.inputs.unflatten(x + side)) for side in (-way, way)
        )
        if not isinstance(left, Raised) and not isinstance(right, Raised):
            fast[rows] |= ((left.value + right.value) / 2 - claimed).abs() > enough
    fast &= accused
    return replace(comparison, wrong=comparison.wrong & ~fast, covered=comparison.covered & ~fast)
