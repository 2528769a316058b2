"""Derivatives of forward along a direction, by six points each; and whether f has one there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.difference import OFFSETS, Samples, six_point
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.jacobian import NumericalJacobian
from gradverify.verifier.numerics.noise import own_noise
from gradverify.verifier.numerics.problem import Problem
from gradverify.verifier.numerics.refine import CUSP_GROWTH, KINK_STEPS, VISIBLE_KINK
from gradverify.verifier.numerics.sampling import scales_of
from gradverify.verifier.numerics.tolerance import EPSILON, SAFETY

LONGEST_STEP = 2.0**-6
"""Step along a direction, in units of the coordinate that it moves most for its size."""

DIRECTIONS = 2
"""A direction may lie in a plane of symmetry by luck; two do not."""

LINEAR = 1e-3
"""Share of |J|·|v| by which the slope along v may differ from J·v: truncation is far below it, what a
missing derivative makes far above."""

KINK_STAYS = 0.3
"""Smooth curvature makes the half-jump 64 times smaller from step to step, a kink leaves it."""


def sampled_along(problem: Problem, centre: Tensor, moved: Tensor, step: float) -> Samples:
    """Six points around x, at multiples of what moves it (N entries), which is `step` times the direction."""
    inputs = Layout.of(problem.primals)
    x = inputs.flatten(problem.primals)
    values = {}
    for k in OFFSETS:
        result = problem.evaluate_fresh(inputs.unflatten(x + k * moved))
        lost = torch.full_like(centre, torch.nan)
        values[k] = lost if isinstance(result, Raised) else problem.outputs.flatten(result.value)
    return six_point(values, centre, torch.tensor(step, dtype=torch.float64))


@dataclass(frozen=True)
class Slope:
    """A measured directional derivative and how far it may be off, absolute."""

    value: float
    error: float
    """Infinite where forward is not finite nearby."""


def slope_along(problem: Problem, u: Sequence[Tensor | None], direction: Tensor, share: float) -> Slope:
    """D6 of t -> u·f(x + t d) at 0, with a step of `share` of the longest one.

    `direction` has N entries and is not zero. Outputs without a grad_output do not count.
    """
    inputs = Layout.of(problem.primals)
    x, weights = inputs.flatten(problem.primals), problem.outputs.flatten(u)
    step = share * LONGEST_STEP / (direction / scales_of(x, inputs)).abs().max().item()
    values = {}
    size = 0.0
    for offset in (0, *OFFSETS):
        result = problem.evaluate_fresh(inputs.unflatten(x + offset * step * direction))
        if isinstance(result, Raised):
            return Slope(0.0, torch.inf)
        terms = weights * problem.outputs.flatten(result.value)
        size = max(size, terms.abs().sum().item())
        values[offset] = terms.sum()[None]
    samples = six_point({k: values[k] for k in OFFSETS}, values[0], torch.tensor([step], dtype=torch.float64))
    error = samples.error(torch.tensor([EPSILON * size], dtype=torch.float64))
    return Slope(samples.derivative.item(), error.item())


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
    """How each row of f behaves along directions in which every input moves.

    Slopes along the coordinates do not prove a derivative: the median of three equal numbers does not move
    with any one of them, yet moves with all. A differentiable f has the slope J·v from both sides.
    """
    own = own_noise(measured.centre, problem.outputs)
    noise = torch.maximum(own, measured.noise)
    generator = torch.Generator().manual_seed(seed % 2**63)
    straight = torch.ones_like(measured.centre, dtype=torch.bool)
    finite = straight.clone()
    for _ in range(DIRECTIONS):
        uniform = torch.rand(2, measured.scale.numel(), generator=generator, dtype=torch.float64)
        v = measured.scale * (uniform[0] + 0.5) * torch.where(uniform[1] < 0.5, -1.0, 1.0)
        coarse, fine = (sampled_along(problem, measured.centre, s * v, s) for s in KINK_STEPS)
        expected, size = measured.value @ v, measured.value.abs() @ v.abs()
        allowed = LINEAR * size + SAFETY * (coarse.error(noise) + measured.error @ v.abs())
        linear = (coarse.derivative - expected).abs() <= allowed
        visible = VISIBLE_KINK * noise / fine.step + LINEAR * size
        kink = (fine.half_jump > KINK_STAYS * coarse.half_jump) & (fine.half_jump > visible)
        straight &= (linear & ~kink) | ~allowed.isfinite()
        steep, steeper = (torch.maximum(s.left.abs(), s.right.abs()) for s in (coarse, fine))
        finite &= (steeper <= CUSP_GROWTH * steep + visible) & (linear | kink | ~allowed.isfinite())
    return Slopes(straight, finite)
