"""Derivatives of forward along a direction in which many inputs move, by six points each.

They say whether f has a derivative at all (`slopes_along`), whether a measured Jacobian is complete
(`agreement`), and whether backward is so far off that no Jacobian is needed to see it (`is_far_off`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.compare import INDEPENDENT_STEPS, SAME, is_quiet
from gradverify.verifier.numerics.jacobian import (
    CUSP_GROWTH,
    FIRST_STEP,
    KINK_STEPS,
    LARGE_STEP,
    VISIBLE_KINK,
    NumericalJacobian,
    converged,
)
from gradverify.verifier.numerics.probes import tangent_of
from gradverify.verifier.numerics.problem import Layout, Problem
from gradverify.verifier.numerics.sampling import (
    OFFSETS,
    Sampler,
    Samples,
    noise_floor,
    scales_of,
    six_point,
)
from gradverify.verifier.numerics.tolerance import EPSILON, SAFETY, is_known

LONGEST_STEP = 2.0**-6
"""Step along a direction, in units of the coordinate that it moves most for its size."""

DIRECTIONS = 2
"""A direction may lie in a plane of symmetry by luck; two do not."""

KEYS = (5, 6)
"""Probe keys of the directions a Jacobian is held against: none that a proof or groups of columns use."""


LINEAR = 1e-3
"""Share of |J|·|v| by which the slope along v may differ from J·v: truncation is far below it, what a
missing derivative makes far above."""

KINK_STAYS = 0.3
"""Smooth curvature makes the half-jump 64 times smaller from step to step, a kink leaves it."""


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
    weights = problem.outputs.flatten(u)
    found = _values_along(problem, direction, share)
    if found is None:
        return Slope(0.0, torch.inf)
    step, values = found
    terms = {k: weights * value for k, value in values.items()}
    size = torch.stack([t.abs().sum() for t in terms.values()]).max()
    sums = {k: t.sum()[None] for k, t in terms.items()}
    samples = six_point(sums, sums[0], torch.tensor([step], dtype=torch.float64))
    return Slope(samples.derivative.item(), samples.error(EPSILON * size).item())


def _values_along(
    problem: Problem, direction: Tensor, share: float
) -> tuple[float, dict[int, Tensor]] | None:
    """The step, and f at x and at six points of x + t d (M entries each); None where forward raises."""
    inputs = Layout.of(problem.primals)
    x = inputs.flatten(problem.primals)
    step = share * LONGEST_STEP / (direction / scales_of(x, inputs)).abs().max().item()
    values = {}
    for offset in (0, *OFFSETS):
        result = problem.evaluate_fresh(inputs.unflatten(x + offset * step * direction))
        if isinstance(result, Raised):
            return None
        values[offset] = problem.outputs.flatten(result.value)
    return step, values


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
    sampler = Sampler(problem, measured.centre)
    noise = torch.maximum(sampler.own, measured.noise)
    generator = torch.Generator().manual_seed(seed % 2**63)
    straight = torch.ones_like(measured.centre, dtype=torch.bool)
    finite = straight.clone()
    for _ in range(DIRECTIONS):
        uniform = torch.rand(2, measured.scale.numel(), generator=generator, dtype=torch.float64)
        v = measured.scale * (uniform[0] + 0.5) * torch.where(uniform[1] < 0.5, -1.0, 1.0)
        coarse, fine = (sampler.along(s * v, s) for s in KINK_STEPS)
        expected, size = measured.value @ v, measured.value.abs() @ v.abs()
        allowed = LINEAR * size + SAFETY * (coarse.error(noise) + measured.error @ v.abs())
        linear = (coarse.derivative - expected).abs() <= allowed
        visible = VISIBLE_KINK * noise / fine.step + LINEAR * size
        kink = has_kink(coarse, fine, visible)
        straight &= (linear & ~kink) | ~allowed.isfinite()
        finite &= (fine.steepest <= CUSP_GROWTH * coarse.steepest + visible) & (
            linear | kink | ~allowed.isfinite()
        )
    return Slopes(straight, finite)


def has_kink(coarse: Samples, fine: Samples, visible: Tensor) -> Tensor:
    """Whether the one-sided slopes differ by as much at the finer step, and by more than `visible`."""
    return (fine.half_jump > KINK_STAYS * coarse.half_jump) & (fine.half_jump > visible)


@dataclass(frozen=True)
class Agreement:
    """What directions say of a measured Jacobian."""

    rows: Tensor
    """Its entries explain every direction at every step: bool, M."""
    entries: Tensor
    """The claim differs from the entry by more than anything that was seen may explain: bool, M × N."""


def agreement(sampler: Sampler, measured: NumericalJacobian, claimed: Tensor, moving: Tensor) -> Agreement:
    """Hold the columns of `moving` (bool, N) against two directions, 24 forwards each.

    A direction w in which many inputs move at once gives J w by a few forwards. Where the entries of a row,
    summed along w, give the same slope at steps from large to small, every entry of that row is what forward
    has: errors in several of them would have to cancel in two random sums. A claim that differs from such an
    entry by far more than the row is off along w cannot be right, and that holds for all columns at once. A
    kink, which hides from central differences by symmetry, shows in the sixth difference: more is then
    allowed than it makes.

    `measured` and `claimed` are M × N, of the first N columns of the problem; the other columns stay where
    they are. Rows at which f is not finite have nothing to be held against.
    """
    rows = torch.ones_like(measured.centre, dtype=torch.bool)
    entries = moving.expand_as(claimed).clone()
    count = moving.numel()
    for key, share in zip(KEYS, INDEPENDENT_STEPS, strict=True):
        tangent = tangent_of(sampler.x, sampler.inputs, key).clone()
        tangent[:count] *= moving
        tangent[count:] = 0.0
        steps = (share * FIRST_STEP, LARGE_STEP, *KINK_STEPS)
        moves = [(sampler.x + step * tangent) - sampler.x for step in steps]
        samples = [sampler.along(m, s) for m, s in zip(moves, steps, strict=True)]
        # Many inputs that move at once make more noise than one.
        small = torch.stack([s.noise for s in samples[2:]])
        floor = torch.maximum(measured.noise, noise_floor(small, sampler.own, sampler.problem.outputs))
        floor = torch.maximum(floor, EPSILON * (measured.value.abs() @ sampler.x[:count].abs()))
        allowed = []
        for s, move, step in zip(samples, moves, steps, strict=True):
            exact = (move / step)[:count]
            # Where nothing moves, an error that is not known does not matter: 0 · inf is NaN.
            error = torch.where(exact == 0, 0.0, measured.error * exact.abs()).sum(dim=1)
            allowed.append(SAFETY * (s.error(torch.where(s.flat, sampler.own, floor)) + error))
            rows &= (s.derivative - measured.value @ exact).abs() <= allowed[-1]
        main = samples[0]
        rows &= main.flat | converged(main, floor, sampler.typical)
        rows &= is_quiet(main, floor, sampler.centre, sampler.typical)
        size, room = tangent[:count].abs(), allowed[0][:, None]
        entries &= SAME * (claimed - measured.value).abs() * size >= room
        entries &= is_known(measured.value * size, claimed * size, room)
    return Agreement(rows | ~measured.centre.isfinite(), entries & rows[:, None])
