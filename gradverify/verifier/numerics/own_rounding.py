"""Whether the rounding of the target's own operations explains a difference.

Where a right formula saturates, it may lose every digit: `1 + erf(x)` is exactly 0 below -6, the sine of 1e17
is arbitrary. What comes out says nothing about the derivative, and nothing about a wrong formula either.
Forward and backward run again with a random error of one rounding in every operation (Parker, *Monte Carlo
arithmetic*, 1997); a difference that this reproduces is not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.analytical import analytical_rows
from gradverify.verifier.numerics.compare import UNSEEN, Comparison, finest_rounding
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.jacobian import NumericalJacobian, natural_slope
from gradverify.verifier.numerics.precision.random_rounding import RandomRounding
from gradverify.verifier.numerics.problem import Problem
from gradverify.verifier.numerics.round_off import nudged
from gradverify.verifier.numerics.sampling import OFFSETS, Sampler
from gradverify.verifier.numerics.tolerance import EPSILON, FEW_DIGITS

RUNS = 4
"""Runs with random errors: the largest of four is rarely far below what rounding can do."""

UNIT = 16 * EPSILON
"""Relative error put into each operation. An error of one rounding next to 1 is itself rounded away in three
of eight draws; of sixteen roundings, in one of fifty."""

PLAUSIBLE = 1e-6
"""Share of the numbers that cancel beyond which a difference is none of their rounding: ten digits lost."""

LAST_PLACES = 2**10
"""Units in the last place by which inputs move (2e-13 of themselves): what loses all digits changes then."""

HANGS = 1e-3
"""Share of a difference by which that moves what loses all digits; and a rounding that is no small number."""

FIRST_ROWS = 8
"""Rows whose backward is run first; where rounding explains nothing there, the others are not asked."""

MOST_ROWS = 256
"""Rows that are run after those: each takes `RUNS` calls of backward, slowed by the errors put in."""


@dataclass(frozen=True)
class Spread:
    """How far random errors move a result."""

    values: Tensor
    """The largest distance from the result without them, entry by entry."""
    seen: bool
    """Every operation is torch's own, so that errors could be put into each."""


def without_own_rounding(sampler: Sampler, measured: NumericalJacobian, comparison: Comparison) -> Comparison:
    """The comparison in which differences that own rounding explains are not judged.

    Wrong entries become `not_judged`; imprecise ones are within the tolerance and pass. Of very many rows the
    worst are asked about; what is wrong in the others is neither judged nor explained: it stays uncovered.
    """
    off = comparison.difference
    doubtful = (comparison.wrong | comparison.imprecise) & off.isfinite()
    if not doubtful.any():
        return comparison
    may_be = _may_be(sampler, measured, comparison, doubtful)
    # Large numbers that cancel make forward constant, and backward right.
    if not may_be and not (doubtful & measured.flat).any():
        return comparison
    explained = doubtful & _by_forward(sampler.problem, measured, comparison)
    left = doubtful & ~explained
    rows = left.any(dim=1).nonzero().flatten().tolist() if may_be else []
    worst = torch.where(left, off, 0.0).amax(dim=1)
    others = sorted(rows[FIRST_ROWS:], key=lambda row: -worst[row].item())
    unasked = torch.zeros_like(left)
    for some in (rows[:FIRST_ROWS], others[:MOST_ROWS]):
        run = partial(analytical_rows, sampler.problem, some, sampler.problem.primals)
        explained[some] |= left[some] & (off[some] <= _explained_by(run if some else None))
        if not (explained & left).any():
            break
    else:
        unasked[others[MOST_ROWS:]] = left[others[MOST_ROWS:]]
    not_judged = comparison.wrong & explained
    open_still = explained | unasked
    return replace(
        comparison,
        wrong=comparison.wrong & ~open_still,
        imprecise=comparison.imprecise & ~explained,
        covered=comparison.covered & ~(comparison.wrong & open_still),
        not_judged=comparison.not_judged | not_judged,
    )


def _may_be(sampler: Sampler, measured: NumericalJacobian, comparison: Comparison, doubtful: Tensor) -> bool:
    """Whether some doubtful entry (bool, M × N) could be round-off, before that is run for.

    It is a small share of numbers of the size of one, of the derivatives or of |f|/|x|; or a rounding of the
    output is no small number, of which an exponential is anything. Or what is computed hangs on the last
    digits of the inputs: moved by `LAST_PLACES`, the row or forward changes by a share of it (one call).
    """
    problem = sampler.problem
    off = torch.where(doubtful, comparison.difference, 0.0)
    slope = natural_slope(measured.centre, measured.scale, problem.outputs)
    largest = comparison.analytical.abs().nan_to_num(0.0, 0.0, 0.0).amax(dim=1, keepdim=True)
    plausible = off <= PLAUSIBLE * torch.maximum(slope, largest).clamp_min(1.0)
    if (doubtful & (plausible | (EPSILON * measured.centre.abs() > HANGS)[:, None])).any():
        return True
    generator = torch.Generator().manual_seed(RUNS)
    x = nudged(sampler.x, sampler.inputs, generator, most=LAST_PLACES)
    rows = doubtful.any(dim=1).nonzero().flatten().tolist()
    there, gradients = sampler.value_at(x), analytical_rows(problem, rows, sampler.inputs.unflatten(x))
    if isinstance(gradients, Raised):
        return True
    values = (there - measured.centre)[rows].abs()[:, None] / measured.scale
    change = torch.maximum(values, (gradients.value - comparison.analytical[rows]).abs())
    return bool((doubtful[rows] & ~(change <= HANGS * off[rows])).any())


def gradient_round_off(problem: Problem, cotangents: Sequence[Tensor | None]) -> Tensor | float:
    """Differences that own rounding explains in the gradient for some grad_outputs (flat, N entries)."""
    inputs = Layout.of(problem.primals)

    def gradient() -> Returned[Tensor] | Raised:
        result = problem.pull_back(problem.primals, cotangents)
        return result if isinstance(result, Raised) else Returned(inputs.flatten(result.value))

    return _explained_by(gradient)


def value_round_off(problem: Problem) -> Tensor | float:
    """Differences that own rounding explains in the outputs (flat, M entries)."""
    return _explained_by(partial(_value, problem))


def _value(problem: Problem) -> Returned[Tensor] | Raised:
    result = problem.evaluate(problem.primals)
    return result if isinstance(result, Raised) else Returned(problem.outputs.flatten(result.value))


def _by_forward(problem: Problem, measured: NumericalJacobian, comparison: Comparison) -> Tensor:
    """Entries (bool, M × N) whose difference forward's rounding explains: its noise over the inputs' size."""
    unseen = _unseen(problem, measured, comparison)
    spread = _spread_of(partial(_value, problem))
    if spread is None:
        return unseen
    nothing = spread.values == 0
    foreign = (nothing & (measured.centre != 0)) | nothing.all() | (not spread.seen)
    foreign |= problem.outputs.rounding > EPSILON
    seen = comparison.difference <= FEW_DIGITS * spread.values[:, None] / measured.scale
    return torch.where(foreign[:, None], unseen, seen)


def _unseen(problem: Problem, measured: NumericalJacobian, comparison: Comparison) -> Tensor:
    """The same where errors cannot be put into forward: NumPy, C++, kernels, a lower precision.

    Numbers as large as the largest output may have been rounded before they cancelled. And where forward
    does not change over the whole stencil, numbers of order one may have, if what backward claims moves it by
    less than their last place.
    """
    outputs = problem.outputs
    slope = natural_slope(measured.centre, measured.scale, outputs)
    largest = UNSEEN * finest_rounding(outputs)[:, None] * slope
    last_place = EPSILON * measured.centre.abs().nan_to_num(0.0, 0.0, 0.0).max().clamp_min(1.0)
    reach = max(OFFSETS) * measured.step
    still = measured.flat & (comparison.analytical.abs() * reach <= last_place)
    return (comparison.difference <= largest) | still


def _explained_by(run: Callable[[], Returned[Tensor] | Raised] | None) -> Tensor | float:
    spread = None if run is None else _spread_of(run)
    return 0.0 if spread is None else FEW_DIGITS * spread.values


def _spread_of(run: Callable[[], Returned[Tensor] | Raised]) -> Spread | None:
    """How far the result of a run moves where every operation errs by one rounding; None where it raises."""
    base, seen = run(), True
    if isinstance(base, Raised):
        return None
    values = torch.zeros_like(base.value)
    for seed in range(RUNS):
        with RandomRounding(UNIT, torch.Generator().manual_seed(seed)) as mode:
            result = run()
        if isinstance(result, Raised):
            return None
        seen &= not mode.foreign
        off = (result.value - base.value).abs().nan_to_num(torch.inf, torch.inf)  # what overflows is lost
        values = torch.maximum(values, torch.where(base.value.isfinite(), off, 0.0))
    return Spread(values, seen)
