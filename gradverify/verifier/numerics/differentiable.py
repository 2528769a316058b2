"""Whether f has a derivative where it is measured: slopes along the coordinates do not prove it.

The median of three equal numbers does not move with any one of them, yet moves with all: every column of the
Jacobian measures as zero, and no backward could say so. Along a direction in which every coordinate moves,
a differentiable f has the slope J·v from both sides.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.difference import OFFSETS, Samples, six_point
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.jacobian import NumericalJacobian
from gradverify.verifier.numerics.noise import own_noise
from gradverify.verifier.numerics.problem import Problem
from gradverify.verifier.numerics.refine import CUSP_GROWTH, KINK_STEPS, SAFETY, VISIBLE_KINK

DIRECTIONS = 2
"""A direction may lie in a plane of symmetry by luck; two do not."""

LINEAR = 1e-3
"""Share of |J|·|v| by which the slope along v may differ from J·v: truncation is far below it, what a
missing derivative makes far above."""

KINK_STAYS = 0.3
"""Smooth curvature makes the half-jump 64 times smaller from step to step, a kink leaves it."""


@dataclass(frozen=True)
class Slopes:
    """What each row of f has along random directions (both bool, M)."""

    linear: Tensor
    """Nothing shows that it has no derivative here; also where its Jacobian is not known in every column."""
    finite: Tensor
    """Its one-sided slopes are finite, and smooth ones are those of its Jacobian.

    Where four atoms lie on each other none of them changes a torsion angle by moving alone, and all together
    do: what forward gives there is a convention.
    """


def slopes_along(problem: Problem, measured: NumericalJacobian, seed: int) -> Slopes:
    """How each row of f behaves along directions in which every input moves."""
    own = own_noise(measured.centre, problem.outputs)
    noise = torch.maximum(own, measured.noise)
    generator = torch.Generator().manual_seed(seed % 2**63)
    straight = torch.ones_like(measured.centre, dtype=torch.bool)
    finite = straight.clone()
    for _ in range(DIRECTIONS):
        uniform = torch.rand(2, measured.scale.numel(), generator=generator, dtype=torch.float64)
        v = measured.scale * (uniform[0] + 0.5) * torch.where(uniform[1] < 0.5, -1.0, 1.0)
        coarse, fine = (_along(problem, measured.centre, v, step) for step in KINK_STEPS)
        expected, size = measured.value @ v, measured.value.abs() @ v.abs()
        allowed = LINEAR * size + SAFETY * (coarse.error(noise) + measured.error @ v.abs())
        linear = (coarse.derivative - expected).abs() <= allowed
        visible = VISIBLE_KINK * noise / fine.step + LINEAR * size
        kink = (fine.half_jump > KINK_STAYS * coarse.half_jump) & (fine.half_jump > visible)
        straight &= (linear & ~kink) | ~allowed.isfinite()
        steep, steeper = (torch.maximum(s.left.abs(), s.right.abs()) for s in (coarse, fine))
        finite &= (steeper <= CUSP_GROWTH * steep + visible) & (linear | kink | ~allowed.isfinite())
    return Slopes(straight, finite)


def _along(problem: Problem, centre: Tensor, v: Tensor, step: float) -> Samples:
    """Six points along a direction; the slope is that of f(x + t·v) by t."""
    inputs = Layout.of(problem.primals)
    x = inputs.flatten(problem.primals)
    values = {}
    for k in OFFSETS:
        result = problem.evaluate_fresh(inputs.unflatten(x + k * step * v))
        if isinstance(result, Raised):
            values[k] = torch.full_like(centre, torch.nan)
        else:
            values[k] = problem.outputs.flatten(result.value)
    return six_point(values, centre, torch.tensor(step, dtype=torch.float64))
