"""How far rounding alone moves what backward returns."""

from __future__ import annotations

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.analytical import analytical_row, unit_cotangent
from gradverify.verifier.numerics.difference import EPSILON
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.noise import typical_values
from gradverify.verifier.numerics.problem import Problem, VjpProblem

SCALES = (1.1, 1.37, 0.83)
"""Sizes of the grad_outputs: no powers of two, so that every product rounds differently."""


ROUND_OFF = 1e-9
"""A spread beyond this share of the row's largest value is not rounding and excuses nothing."""

ROWS_APART = 48
"""Up to this many rows each is measured at moved inputs of its own."""

NOTHING = 64 * EPSILON
"""A row no larger than this, for a grad_output of 1, may be what is left where 1 - 1 was meant: such a row is
rounding if it changes by as much as it is when inputs hardly move."""

MORE_MOVES = 4
"""Times `SCALES` that such a row is asked: so small a number takes few values, and may repeat itself."""

FAR = 4096
"""Units in the last place by which inputs move for such a row: a derivative changes by 1e-12 of itself, and
what is rounded is rounded anew."""

LOW_PRECISION = 64.0
"""The same for inputs of lower precision, in units of their own rounding."""


def nudged(x: Tensor, inputs: Layout, generator: torch.Generator, *, most: int) -> Tensor:
    """A point moved by at most that many units in the last place, each coordinate in its own dtype."""
    return x * (1 + torch.randint(-most, most + 1, x.shape, generator=generator) * inputs.rounding)


def backward_round_off(problem: Problem, rows: Tensor, analytical: Tensor) -> Tensor:
    """How far backward's own rounding may move the given rows (bool, M): absolute, M × N, zero elsewhere.

    Measured: the same rows with grad_outputs of other sizes at inputs moved by a few units in the last
    place. A spread beyond `ROUND_OFF` of the largest value is not rounding (it is a backward that is not
    linear, or one that jumps) and excuses nothing, but for what is next to nothing itself.
    """
    inputs = Layout.of(problem.primals)
    generator = torch.Generator().manual_seed(20_261)
    bound = torch.zeros_like(analytical)
    x = inputs.flatten(problem.primals)
    share = _largest_share(inputs)
    if rows.sum() > ROWS_APART:
        spread = _spread_of_many(problem, rows, analytical, generator)
        limit = share * analytical.abs().amax(dim=1, keepdim=True).clamp_min(EPSILON)
        bound = torch.where((spread <= limit) | _is_nothing(spread, analytical), 3 * spread, 0.0)
        return bound + 4 * EPSILON * analytical.abs() * rows[:, None]
    for position in rows.nonzero().flatten().tolist():
        spread = torch.zeros(inputs.size, dtype=torch.float64)
        nothing = bool(analytical[position].abs().max() <= NOTHING)
        for scale in SCALES * (MORE_MOVES if nothing else 1):
            moved = inputs.unflatten(nudged(x, inputs, generator, most=FAR if nothing else 4))
            row = analytical_row(problem, inputs, position, moved, scale)
            if isinstance(row, Raised):
                break
            spread = torch.maximum(spread, (row.value - analytical[position]).abs())
        largest = max(analytical[position].abs().max().item(), EPSILON)
        explained = (spread <= share * largest) | _is_nothing(spread, analytical[position])
        bound[position] = torch.where(explained, 3 * spread, 0.0)
    return bound + 4 * EPSILON * analytical.abs() * rows[:, None]


def _is_nothing(spread: Tensor, analytical: Tensor) -> Tensor:
    """Entries of rows that are next to nothing, and change by as much when inputs hardly move."""
    row = analytical.abs().amax(dim=-1, keepdim=True) <= NOTHING
    return row & (spread >= analytical.abs()) & (spread <= NOTHING)


def _spread_of_many(problem: Problem, rows: Tensor, analytical: Tensor, generator: torch.Generator) -> Tensor:
    """How far rows change, M × N: all of them at the same moved inputs, one graph for each size."""
    inputs = Layout.of(problem.primals)
    x = inputs.flatten(problem.primals)
    asked = rows.nonzero().flatten().tolist()
    spread = torch.zeros_like(analytical)
    for scale in SCALES:
        moved = inputs.unflatten(nudged(x, inputs, generator, most=4))
        units = (unit_cotangent(problem, position, scale) for position in asked)
        result = problem.pull_back_each(moved, units)
        if isinstance(result, Raised):
            break
        for position, gradients in zip(asked, result.value, strict=True):
            difference = (inputs.flatten(gradients) / scale - analytical[position]).abs()
            spread[position] = torch.maximum(spread[position], difference)
    nothing = rows & (analytical.abs().amax(dim=1) <= NOTHING)
    if nothing.any():  # each takes few values, and all of them together what any of them may take
        spread[nothing] = spread[nothing].amax()
    return spread


def may_be_round_off(difference: Tensor, inputs: Layout, analytical: Tensor) -> Tensor:
    """Differences (absolute, M × N) that the rounding of backward could be, as large as it may be at most."""
    largest = analytical.abs().nan_to_num(0.0, 0.0, 0.0).amax(dim=1, keepdim=True).clamp_min(EPSILON)
    return (largest <= NOTHING) | ~(difference > (3 * _largest_share(inputs) + 4 * EPSILON) * largest)


def _largest_share(inputs: Layout) -> float:
    return max(ROUND_OFF, LOW_PRECISION * inputs.rounding.max().item())


def gradient_noise(second: VjpProblem) -> Tensor:
    """Noise of the first-order gradients, absolute, one for each.

    Measured by scaling grad_output and moving the inputs by a few units in the last place: a gradient that
    cancels to zero is noise, not a value. At least the rounding of the largest entry of the same gradient:
    where a factor like 1 - y² is saturated, its rounding is that of the 1, which no small move shows.
    """
    x, u = second.first_order.primals, second.cotangents
    inputs = Layout.of(x)
    flat, generator = inputs.flatten(x), torch.Generator().manual_seed(5)
    spread = torch.zeros(inputs.size, dtype=torch.float64)
    first = second.evaluate(second.primals)
    if isinstance(first, Raised):
        return spread
    base = inputs.flatten(first.value)
    spread = inputs.rounding * typical_values(base, inputs)
    for scale in SCALES:
        moved = inputs.unflatten(nudged(flat, inputs, generator, most=2))
        result = second.evaluate((*moved, *(t * scale for t in u)))
        if isinstance(result, Raised):
            return spread
        spread = torch.maximum(spread, (inputs.flatten(result.value) / scale - base).abs())
    return spread.nan_to_num(0.0, 0.0, 0.0)
