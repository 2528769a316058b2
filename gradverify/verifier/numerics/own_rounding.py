"""Whether the rounding of the target's own operations explains a difference.

Where a right formula saturates, it may lose every digit: `1 + erf(x)` is exactly 0 below -6, the sine of 1e17
is arbitrary. What comes out says nothing about the derivative, and nothing about a wrong formula either.
Forward and backward run again with a random error of one rounding in every operation (Parker, *Monte Carlo
arithmetic*, 1997); a difference that this reproduces is not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.analytical import unit_cotangent
from gradverify.verifier.numerics.compare import UNSEEN, Comparison, finest_rounding
from gradverify.verifier.numerics.difference import EPSILON, OFFSETS
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.jacobian import NumericalJacobian, natural_slope
from gradverify.verifier.numerics.precision.random_rounding import RandomRounding
from gradverify.verifier.numerics.problem import Problem

RUNS = 4
"""Runs with random errors: the largest of four is rarely far below what rounding can do."""

FEW_DIGITS = 64.0
"""Differences up to this many times what rounding moves are explained: of such a value not two digits are
left, and no step is so small that it would show the derivative."""

FIRST_ROWS = 8
"""Rows whose backward is run first; where rounding explains nothing there, the others are not asked."""


@dataclass(frozen=True)
class Spread:
    """How far random errors move a result."""

    values: Tensor
    """The largest distance from the result without them, entry by entry."""
    seen: bool
    """Every operation is torch's own, so that errors could be put into each."""


def without_own_rounding(
    problem: Problem, inputs: Layout, measured: NumericalJacobian, comparison: Comparison
) -> Comparison:
    """The comparison in which differences that own rounding explains are not judged.

    Wrong entries become `not_judged`; imprecise ones are within the tolerance and pass.
    """
    off = (comparison.analytical - comparison.numerical).abs()
    accused = (comparison.wrong | comparison.imprecise) & off.isfinite()
    if not accused.any():
        return comparison
    explained = accused & ((off <= _of_forward(problem, measured)) | _below_last_place(measured, comparison))
    left = accused & ~explained
    rows = left.any(dim=1).nonzero().flatten().tolist()
    for some in (rows[:FIRST_ROWS], rows[FIRST_ROWS:]):
        found = _of_backward(problem, inputs, comparison.analytical, some)
        explained[some] |= left[some] & (off[some] <= found)
        if not (explained & left).any():
            break
    not_judged = comparison.wrong & explained
    return replace(
        comparison,
        wrong=comparison.wrong & ~explained,
        imprecise=comparison.imprecise & ~explained,
        covered=comparison.covered & ~not_judged,
        not_judged=comparison.not_judged | not_judged,
    )


def gradient_round_off(problem: Problem, cotangents: Sequence[Tensor | None], gradient: Tensor) -> Tensor:
    """Differences that own rounding explains in one gradient (flat, N entries)."""
    inputs = Layout.of(problem.primals)

    def again() -> Returned[Tensor] | Raised:
        result = problem.pull_back(problem.primals, cotangents)
        return result if isinstance(result, Raised) else Returned(inputs.flatten(result.value))

    return FEW_DIGITS * spread_of(again, gradient).values


def value_round_off(problem: Problem, values: Tensor) -> Tensor:
    """Differences that own rounding explains in the outputs (flat, M entries)."""
    return FEW_DIGITS * _of_values(problem, values).values


def spread_of(run: Callable[[], Returned[Tensor] | Raised], base: Tensor) -> Spread:
    """How far the result of a run moves where every operation errs by one rounding (like `base`)."""
    values, seen = torch.zeros_like(base), True
    for seed in range(RUNS):
        with RandomRounding(EPSILON, torch.Generator().manual_seed(seed)) as mode:
            result = run()
        if isinstance(result, Raised):
            return Spread(torch.zeros_like(base), seen=False)
        seen &= not mode.foreign
        values = torch.maximum(values, (result.value - base).abs().nan_to_num(0.0, 0.0, 0.0))
    return Spread(values, seen)


def _of_forward(problem: Problem, measured: NumericalJacobian) -> Tensor:
    """Differences that forward's rounding explains (M × N): its noise over the size of each input.

    Where rounding could not be put into forward (NumPy, C++, kernels; a lower precision), numbers as large as
    the largest output may have been rounded before they cancelled.
    """
    centre, outputs = measured.centre, problem.outputs
    spread = _of_values(problem, centre)
    unknown = (spread.values == 0) | (outputs.rounding > EPSILON) | (not spread.seen)
    largest = UNSEEN * finest_rounding(outputs)[:, None] * natural_slope(centre, measured.scale, outputs)
    return torch.where(unknown[:, None], largest, FEW_DIGITS * spread.values[:, None] / measured.scale)


def _of_values(problem: Problem, values: Tensor) -> Spread:
    def again() -> Returned[Tensor] | Raised:
        result = problem.evaluate(problem.primals)
        return result if isinstance(result, Raised) else Returned(problem.outputs.flatten(result.value))

    return spread_of(again, values)


def _below_last_place(measured: NumericalJacobian, comparison: Comparison) -> Tensor:
    """Entries (bool, M × N) where forward stands still and the claimed slope would not have moved it.

    Over the whole stencil forward is the same to the last bit, and what backward claims changes it by less
    than the last place of a number of order one, or of the largest value if that is larger.
    """
    reach = max(OFFSETS) * measured.step
    last_place = EPSILON * measured.centre.abs().nan_to_num(0.0, 0.0, 0.0).max().clamp_min(1.0)
    return measured.flat & (comparison.analytical.abs() * reach <= last_place)


def _of_backward(problem: Problem, inputs: Layout, analytical: Tensor, rows: Sequence[int]) -> Tensor:
    """Differences that backward's rounding explains, for some rows of the Jacobian (len(rows) × N)."""
    if not rows:
        return analytical[list(rows)]

    def gradients() -> Returned[Tensor] | Raised:
        units = (unit_cotangent(problem, position) for position in rows)
        result = problem.pull_back_each(problem.primals, units)
        return (
            result
            if isinstance(result, Raised)
            else Returned(torch.stack([inputs.flatten(one) for one in result.value]))
        )

    return FEW_DIGITS * spread_of(gradients, analytical[list(rows)]).values
