"""Whether the rounding of the target's own operations explains what it gives at values nobody declared.

At extreme values a right formula may lose every digit: numbers of 1e22 that cancel, the sine of 1e17. What
comes out has nothing to do with the derivative, and nothing with a wrong formula either. Forward and backward
run again with a random error of one rounding in every operation; what moves by as much as it is off says
nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.analytical import analytical_row
from gradverify.verifier.numerics.compare import Comparison
from gradverify.verifier.numerics.difference import EPSILON
from gradverify.verifier.numerics.jacobian import NumericalJacobian
from gradverify.verifier.numerics.precision.random_rounding import RandomRounding

RUNS = 4
"""Runs with random errors: the largest of four is rarely far below what rounding can do."""

FEW_DIGITS = 64.0
"""Differences up to this many times what rounding moves are explained: of such a value not two digits are
left, and no step is so small that it would show the derivative."""

MOST_ROWS = 32
"""Rows that are run again; a mistake in more of them is no accident of rounding."""


def explained_by_own_rounding(sample: Sample, comparison: Comparison, measured: NumericalJacobian) -> Tensor:
    """Entries that are wrong by no more than rounding moves them (bool, M × N)."""
    explained = torch.zeros_like(comparison.wrong)
    rows = comparison.wrong.any(dim=1).nonzero().flatten().tolist()
    if not rows or len(rows) > MOST_ROWS:
        return explained
    of_forward = _slopes_of_noise(sample, measured)
    for position in rows:
        claimed = comparison.analytical[position]
        spread = torch.maximum(_spread(sample, position, claimed), of_forward[position])
        off = (claimed - comparison.numerical[position]).abs()
        explained[position] = comparison.wrong[position] & (off <= FEW_DIGITS * spread)
    return explained


def _spread(sample: Sample, position: int, claimed: Tensor) -> Tensor:
    """How far one row moves where every operation errs; nothing where what runs is not torch's to err in."""

    def row() -> Returned[Tensor] | Raised:
        return analytical_row(sample.problem, sample.inputs, position, sample.problem.primals)

    return _scatter(row, claimed)


def _slopes_of_noise(sample: Sample, measured: NumericalJacobian) -> Tensor:
    """How far forward's values move by it, over the size of each input (M × N)."""
    problem = sample.problem

    def values() -> Returned[Tensor] | Raised:
        result = problem.evaluate(problem.primals)
        return result if isinstance(result, Raised) else Returned(problem.outputs.flatten(result.value))

    return _scatter(values, measured.centre)[:, None] / measured.scale


def _scatter(run: Callable[[], Returned[Tensor] | Raised], base: Tensor) -> Tensor:
    spread = torch.zeros_like(base)
    for seed in range(RUNS):
        with RandomRounding(EPSILON, torch.Generator().manual_seed(seed)) as mode:
            result = run()
        if isinstance(result, Raised) or mode.foreign:
            return torch.zeros_like(base)
        spread = torch.maximum(spread, (result.value - base).abs().nan_to_num(0.0, 0.0, 0.0))
    return spread
