"""How far rounding alone moves what forward and backward return."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.analytical import analytical_rows
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.noise import typical_values
from gradverify.verifier.numerics.problem import CallProblem, Gradients, Problem, Tensors, VjpProblem
from gradverify.verifier.numerics.tolerance import EPSILON, ROUNDINGS, SPREADS

SCALES = (1.1, 1.37, 0.83)
"""Sizes of the grad_outputs: no powers of two, so that every product rounds differently."""

ROUND_OFF = 1e-9
"""A spread beyond this share of the row's largest value is not rounding and excuses nothing."""

OF_ONE = 1e-12
"""Rows whose largest entry is below this, for a grad_output of one, may be nothing but rounding: numbers like
one cancel in backward where a derivative is zero, as in exp(x) exp(-x) - 1."""

ASIDE = 2**20
"""Units in the last place by which inputs are moved to see that: what is a value of its own hardly moves
(2e-10 of itself), what is rounding is another one each time, where a few units may leave it as it is."""

FEW_ROWS = 48
"""Up to this many rows are always measured, of more those alone that rounding could explain."""

LOW_PRECISION = 64.0
"""The same for inputs of lower precision, in units of their own rounding."""


def nudged(x: Tensor, inputs: Layout, generator: torch.Generator, *, most: int) -> Tensor:
    """A point moved by at most that many units in the last place, each coordinate in its own dtype."""
    return x * (1 + torch.randint(-most, most + 1, x.shape, generator=generator) * inputs.rounding)


def backward_round_off(problem: Problem, rows: Tensor, claimed: Tensor) -> Tensor:
    """How far backward's own rounding may move the given rows (bool, M): absolute, M × N, zero elsewhere.

    Measured: the same rows with grad_outputs of other sizes at inputs moved by a few units in the last
    place. A spread beyond `ROUND_OFF` of the largest value is not rounding (it is a backward that is not
    linear, or one that jumps) and excuses nothing. Rows without any large value are looked at further aside.
    """
    largest = claimed.abs().amax(dim=1, keepdim=True)
    tiny = rows & (largest[:, 0] < OF_ONE)
    bound = ROUNDINGS * claimed.abs() * rows[:, None]
    spread = _spread_of_rows(problem, rows & ~tiny, claimed, SCALES, most=4)
    limit = _largest_share(Layout.of(problem.primals)) * largest.clamp_min(EPSILON)
    bound += torch.where(spread <= limit, SPREADS * spread, 0.0)
    if tiny.any():
        spread = _spread_of_rows(problem, tiny, claimed, 3 * SCALES, most=ASIDE)
        # Each takes few values; all of them together take what any of them may take.
        spread[tiny] = spread[tiny].amax()
        rounded = (spread <= OF_ONE) & (spread >= claimed.abs())
        bound += torch.where(rounded, SPREADS * spread, 0.0)
    return bound


def _spread_of_rows(
    problem: Problem, rows: Tensor, claimed: Tensor, scales: Sequence[float], *, most: int
) -> Tensor:
    """How far rows change, M × N: one graph for each size of grad_output, at moved inputs of its own."""
    inputs, generator = Layout.of(problem.primals), torch.Generator().manual_seed(20_261)
    x = inputs.flatten(problem.primals)
    spread = torch.zeros_like(claimed)
    asked = rows.nonzero().flatten().tolist()
    for scale in scales if asked else ():
        moved = inputs.unflatten(nudged(x, inputs, generator, most=most))
        found = analytical_rows(problem, asked, moved, scale)
        if isinstance(found, Raised):
            break
        spread[asked] = torch.maximum(spread[asked], (found.value - claimed[asked]).abs())
    return spread


def may_be_round_off(difference: Tensor, inputs: Layout, analytical: Tensor) -> Tensor:
    """Differences (absolute, M × N) that the rounding of backward could be, as large as it may be at most."""
    largest = analytical.abs().nan_to_num(0.0, 0.0, 0.0).amax(dim=1, keepdim=True)
    most = (SPREADS * _largest_share(inputs) + ROUNDINGS) * largest.clamp_min(EPSILON)
    return ~(difference > torch.where(largest < OF_ONE, 4 * OF_ONE, most))


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
    first = second.evaluate(second.primals)
    if isinstance(first, Raised):
        return torch.zeros(inputs.size, dtype=torch.float64)
    base = inputs.flatten(first.value)
    spread = inputs.rounding * typical_values(base, inputs)
    for scale in SCALES:
        moved = inputs.unflatten(nudged(flat, inputs, generator, most=2))
        result = second.evaluate((*moved, *(t * scale for t in u)))
        if isinstance(result, Raised):
            return spread
        spread = torch.maximum(spread, (inputs.flatten(result.value) / scale - base).abs())
    return spread.nan_to_num(0.0, 0.0, 0.0)


def value_spread(problem: CallProblem, base: Tensor) -> Tensor:
    """How far rounding may move the outputs: inputs moved by a few units in the last place."""
    size = base.abs().nan_to_num(0.0, 0.0, 0.0)
    return _spread_nearby(problem, base, size, problem.outputs, problem.evaluate)


def gradient_spread(problem: Problem, u: tuple[Tensor | None, ...], base: Tensor) -> Tensor:
    """The same for a gradient; a gradient that cancels has the rounding of its largest neighbour."""
    size = base.abs().nan_to_num(0.0, 0.0, 0.0)
    size = size.max().expand_as(base) if base.numel() else size
    layout = Layout.of(problem.primals)
    return _spread_nearby(problem, base, size, layout, lambda moved: problem.pull_back(moved, u))


def _spread_nearby(
    problem: Problem,
    base: Tensor,
    size: Tensor,
    results: Layout,
    run: Callable[[Tensors], Returned[Tensors] | Returned[Gradients] | Raised],
) -> Tensor:
    inputs = Layout.of(problem.primals)
    x, spread = inputs.flatten(problem.primals), ROUNDINGS * size
    for seed in (1, 2):
        generator = torch.Generator().manual_seed(seed)
        result = run(inputs.unflatten(nudged(x, inputs, generator, most=4)))
        if not isinstance(result, Raised):
            off = (results.flatten(result.value) - base).abs()
            spread = torch.maximum(spread, off.nan_to_num(0.0, 0.0, 0.0))
    return spread
