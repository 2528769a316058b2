"""A measured Jacobian held against random directions: what they bear out needs no second measurement.

A direction w in which many inputs move at once gives J w by a few forwards. Where the entries of a row,
summed along w, give the same slope at steps from large to small, every entry of that row is what forward has:
errors in several of them would have to cancel in two random sums. A claim that differs from such an entry by
far more than the row is off along w cannot be right, and that holds for all columns at once. A kink, which
hides from central differences by symmetry, shows in the sixth difference: more is then allowed than it makes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.verifier.numerics.confirm import INDEPENDENT_STEPS, SAME, is_quiet
from gradverify.verifier.numerics.difference import Samples
from gradverify.verifier.numerics.directional_derivative import sampled_along
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.jacobian import NumericalJacobian
from gradverify.verifier.numerics.noise import noise_floor, own_noise, typical_values
from gradverify.verifier.numerics.probes import tangent_of
from gradverify.verifier.numerics.problem import Problem
from gradverify.verifier.numerics.refine import FIRST_STEP, KINK_STEPS, LARGE_STEP, converged
from gradverify.verifier.numerics.tolerance import EPSILON, SAFETY

DIRECTIONS = (5, 6)
"""Keys of the random directions: none that the certificate or the groups of columns use."""


@dataclass(frozen=True)
class BorneOut:
    """What directions say of a measured Jacobian."""

    rows: Tensor
    """Its entries explain every direction at every step: bool, M."""
    entries: Tensor
    """The claim differs from the entry by more than anything that was seen may explain: bool, M × N."""


def borne_out(problem: Problem, measured: NumericalJacobian, claimed: Tensor, moving: Tensor) -> BorneOut:
    """Hold the columns of `moving` (bool, N) against two directions, 24 forwards each.

    `measured` and `claimed` are M × N, of the first N columns of the problem; the other columns stay where
    they are. Rows at which f is not finite have nothing to be held against.
    """
    rows = torch.ones_like(measured.centre, dtype=torch.bool)
    entries = moving.expand_as(claimed).clone()
    for key, share in zip(DIRECTIONS, INDEPENDENT_STEPS, strict=True):
        one = _along(problem, measured, claimed, moving, key, share)
        rows &= one.rows
        entries &= one.entries
    return BorneOut(rows | ~measured.centre.isfinite(), entries & rows[:, None])


@dataclass(frozen=True)
class _Step:
    """One direction at one step, held against the entries."""

    samples: Samples
    tangent: Tensor
    """w as it was exactly moved, N entries."""
    residual: Tensor
    """How far the entries miss the slope, M."""
    allowed: Tensor
    """How far they may, M."""


def _along(
    problem: Problem, measured: NumericalJacobian, claimed: Tensor, moving: Tensor, key: int, share: float
) -> BorneOut:
    inputs = Layout.of(problem.primals)
    x = inputs.flatten(problem.primals)
    count = moving.numel()
    tangent = tangent_of(x, inputs, key).clone()
    tangent[:count] *= moving
    tangent[count:] = 0.0
    steps = (share * FIRST_STEP, LARGE_STEP, *KINK_STEPS)
    moves = [(x + step * tangent) - x for step in steps]
    sampled = [sampled_along(problem, measured.centre, m, s) for m, s in zip(moves, steps, strict=True)]
    own = own_noise(measured.centre, problem.outputs)
    # Many inputs that move at once make more noise than one.
    of_small = torch.stack([samples.noise for samples in sampled[2:]])
    floor = torch.maximum(measured.noise, noise_floor(of_small, own, problem.outputs))
    floor = torch.maximum(floor, EPSILON * (measured.value.abs() @ x[:count].abs()))
    exact = [(move / step)[:count] for move, step in zip(moves, steps, strict=True)]
    main, *others = (_held_against(measured, s, e, floor, own) for s, e in zip(sampled, exact, strict=True))
    rows = main.residual <= main.allowed
    for other in others:
        rows &= other.residual <= other.allowed
    typical = typical_values(measured.centre, problem.outputs)
    rows &= main.samples.flat | converged(main.samples, floor, typical)
    rows &= is_quiet(main.samples, floor, measured.centre, typical)
    difference = (claimed - measured.value).abs() * main.tangent.abs()
    return BorneOut(rows, moving & (SAME * difference >= main.allowed[:, None]))


def _held_against(
    measured: NumericalJacobian, samples: Samples, tangent: Tensor, floor: Tensor, own: Tensor
) -> _Step:
    """The entries' own slope along a direction beside the sampled one."""
    summed = measured.value @ tangent
    # Where nothing moves, an error that is not known does not matter: 0 · inf is NaN.
    error = torch.where(tangent == 0, 0.0, measured.error * tangent.abs()).sum(dim=1)
    allowed = SAFETY * (samples.error(torch.where(samples.flat, own, floor)) + error)
    return _Step(samples, tangent, (samples.derivative - summed).abs(), allowed)
