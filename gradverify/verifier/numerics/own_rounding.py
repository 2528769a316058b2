"""Whether the rounding of the target's own operations explains a difference.

Where a right formula saturates, it may lose every digit: `1 + erf(x)` is exactly 0 below -6, the sine of 1e17
is arbitrary. What comes out says nothing about the derivative, and nothing about a wrong formula either.
Forward and backward run again with a random error of one rounding in every operation (Parker, *Monte Carlo
arithmetic*, 1997); a difference that this reproduces is not judged.

Errors cannot be put into NumPy, C++ and kernels. There the inputs are moved by a few units in the last place:
what backward gives on one side of x is smooth but for its rounding.
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
from gradverify.verifier.numerics.round_off import ASIDE
from gradverify.verifier.numerics.sampling import OFFSETS, Sampler
from gradverify.verifier.numerics.tolerance import EPSILON, FEW_DIGITS

RUNS = 4
"""Runs with random errors: the largest of four is rarely far below what rounding can do."""

UNIT = 16 * EPSILON
"""Relative error put into each operation. An error of one rounding next to 1 is itself rounded away in three
of eight draws; of sixteen roundings, in one of fifty."""

HOPELESS = 64.0
"""A difference that is so many times what the first run explains is not asked about again: one draw of a
product's error is rarely that far below the largest of four."""

POINTS = 4
"""Points on either side of x, `ASIDE` apart, to which all inputs move together. What ties stays tied, zeros
stay, and a step of backward at x itself is none among the points on one side."""

FIRST_ROWS = 8
"""Rows whose backward is run first; where rounding explains nothing there, the others are not asked."""

MOST_ROWS = 256
"""Rows that are run after those: each takes `RUNS` calls of backward, slowed by the errors put in."""


@dataclass(frozen=True)
class Spread:
    """How far random errors move a result."""

    values: Tensor
    """The largest distance from the result without them, entry by entry, or that between two runs if it is
    less: what all runs agree on, and the result without errors does not give, is no rounding but state."""
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
    explained = doubtful & _by_forward(sampler.problem, measured, comparison)
    left = doubtful & ~explained
    rows = left.any(dim=1).nonzero().flatten().tolist()
    asked = torch.where(left, off, torch.inf)
    worst = torch.where(left, off, 0.0).amax(dim=1)
    others = sorted(rows[FIRST_ROWS:], key=lambda row: -worst[row].item())
    unasked = torch.zeros_like(left)
    for some in (rows[:FIRST_ROWS], others[:MOST_ROWS]):
        explained[some] |= left[some] & (off[some] <= _row_round_off(sampler.problem, some, asked[some]))
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


def _row_round_off(problem: Problem, rows: Sequence[int], asked: Tensor) -> Tensor | float:
    """Differences that own rounding explains in some rows of backward; `asked` are those to be explained.

    (number of rows) × N, both; infinite in `asked` where nothing is to be explained.
    """
    if not rows:
        return 0.0
    explained = torch.as_tensor(
        _explained_by(partial(analytical_rows, problem, rows, problem.primals), asked)
    ).expand_as(asked)
    if bool((asked.isinf() | (asked <= explained)).all()):
        return explained
    return torch.maximum(explained, FEW_DIGITS * _roughness(problem, rows, asked))


def _roughness(problem: Problem, rows: Sequence[int], like: Tensor) -> Tensor:
    """How far rows of backward are from smooth at points on the same side of x; zero where it raises.

    Half of the largest second difference: of what is smooth, that is a share of 1e-18.
    """
    inputs = Layout.of(problem.primals)
    x, rough = inputs.flatten(problem.primals), torch.zeros_like(like)
    for side in (1, -1):
        units = (side * ASIDE * k for k in range(1, POINTS + 1))
        points = (inputs.unflatten(x * (1 + unit * inputs.rounding)) for unit in units)
        found = [analytical_rows(problem, rows, point) for point in points]
        values = [one.value for one in found if isinstance(one, Returned)]
        if len(values) == POINTS:
            second = torch.stack(values).diff(n=2, dim=0).abs().amax(dim=0) / 2
            rough = torch.maximum(rough, second.nan_to_num(0.0, 0.0))
    return rough


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
    doubtful = comparison.wrong | comparison.imprecise
    asked = torch.where(doubtful, comparison.difference * measured.scale, torch.inf).amin(dim=1)
    spread = _spread_of(partial(_value, problem), asked)
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


def _explained_by(
    run: Callable[[], Returned[Tensor] | Raised], asked: Tensor | None = None
) -> Tensor | float:
    spread = _spread_of(run, asked)
    return 0.0 if spread is None else FEW_DIGITS * spread.values


def _spread_of(run: Callable[[], Returned[Tensor] | Raised], asked: Tensor | None = None) -> Spread | None:
    """How far the result of a run moves where every operation errs by one rounding; None where it raises.

    `asked` are the differences to be explained, entry by entry: no second run where the first is far below.
    """
    base, seen = run(), True
    if isinstance(base, Raised):
        return None
    values, results = torch.zeros_like(base.value), []
    for seed in range(RUNS):
        with RandomRounding(UNIT, torch.Generator().manual_seed(seed)) as mode:
            result = run()
        if isinstance(result, Raised):
            return None
        seen &= not (mode.foreign or mode.missed)
        off = (result.value - base.value).abs().nan_to_num(torch.inf, torch.inf)  # what overflows is lost
        values = torch.maximum(values, torch.where(base.value.isfinite(), off, 0.0))
        results.append(result.value)
        if asked is not None and not (asked <= HOPELESS * FEW_DIGITS * values).any():
            break
    runs = torch.stack(results)
    between = (runs.amax(dim=0) - runs.amin(dim=0)).abs().nan_to_num(torch.inf, torch.inf)
    return Spread(torch.minimum(values, between) if len(results) > 1 else values, seen)
