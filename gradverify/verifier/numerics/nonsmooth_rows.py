"""Kinks where several coordinates meet: the slopes on both sides along one of them are not all there are.

Where three numbers are equal, the middle one of them does not rise with any single number moved up, and a
backward that gives it to one of the three returns the derivative of one of the smooth pieces that meet there.
That piece shows itself beside the point: with the other coordinates moved apart, the slope along each is
measured in every gap between them. Where what ties are sums of the coordinates (scores of a token that is
zero), the pieces are cones around the point, and some of those lie along no such order: the slope is measured
in random directions from the point, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.jacobian import NumericalJacobian
from gradverify.verifier.numerics.problem import Problem

BESIDE = 2.0**-12
"""How far the coordinates are moved apart, in units of the smallest of their scales."""

STEP = 2.0**-26
"""Half the distance over which a slope is measured there: far below the gaps between them."""

ARRANGEMENTS = 4
"""Times that the other coordinates are moved apart in a random order, beside that of their positions."""

MOST_GAPS = 64
"""Places of a coordinate among the others; of more, so many are drawn."""

DIRECTIONS = 256
"""Random ways at most from the point along which all the coordinates move, each by another amount. The cone
in which the first two of four random scores are the largest was missed by 128 of them once in 40 times."""

ROOM = 0.1
"""Share of the range of slopes, and of the claim, by which a claim may lie outside: pieces are curved."""


def explained_by_other_pieces(
    problem: Problem, measured: NumericalJacobian, analytical: Tensor, wrong: Tensor
) -> Tensor:
    """Entries of `wrong` (bool, M × N) whose claim lies among the slopes beside a joint kink."""
    kinked = measured.kink > 0
    asked = wrong & kinked & (kinked.sum(dim=1, keepdim=True) > 1)
    result = torch.zeros_like(wrong)
    for column in asked.any(dim=0).nonzero().flatten().tolist():
        others = kinked[asked[:, column]].any(dim=0)
        others[column] = False
        claimed, rows = analytical[:, column], asked[:, column]
        for lowest, highest in _slopes_beside(problem, measured, column, others.nonzero().flatten()):
            room = ROOM * torch.maximum(highest - lowest, claimed.abs())
            result[:, column] = rows & (claimed >= lowest - room) & (claimed <= highest + room)
            if bool((result[:, column] == rows).all()):
                break
    return result


def _slopes_beside(
    problem: Problem, measured: NumericalJacobian, column: int, others: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """The lowest and the highest slope (M each) along a coordinate, wherever it lies among the others.

    Of all that is known so far: first after every gap between the others, then after each random direction.
    """
    x = Layout.of(problem.primals).flatten(problem.primals)
    unit = measured.scale[[column, *others.tolist()]].min().item()
    lowest = torch.full_like(measured.centre, torch.inf)
    highest = -lowest
    generator = torch.Generator().manual_seed(column)

    def measure(moved: Tensor) -> None:
        slope = _slope(problem, measured, moved, column, STEP * unit)
        known = slope.isfinite()
        torch.where(known, torch.minimum(lowest, slope), lowest, out=lowest)
        torch.where(known, torch.maximum(highest, slope), highest, out=highest)

    # Which of equal numbers counts as the first is mostly decided by their positions.
    upwards = torch.arange(len(others))
    at_random = [torch.randperm(len(others), generator=generator) for _ in range(ARRANGEMENTS)]
    for order in (upwards, upwards.flip(0), *at_random):
        apart = order + 1.0
        moved = x.clone()
        moved[others] += BESIDE * unit * (2 * apart / (len(others) + 1) - 1).to(torch.float64)
        gaps = torch.randperm(len(others) + 1, generator=generator)[:MOST_GAPS]
        for place in (2 * (gaps + 0.5) / (len(others) + 1) - 1).tolist():
            moved[column] = x[column] + BESIDE * unit * place
            measure(moved)
    yield lowest, highest
    together = torch.cat([torch.tensor([column]), others])
    for _ in range(DIRECTIONS):
        moved = x.clone()
        way = torch.randn(len(together), generator=generator, dtype=torch.float64)
        moved[together] += BESIDE * unit * way
        measure(moved)
        yield lowest, highest


def _slope(problem: Problem, measured: NumericalJacobian, x: Tensor, column: int, step: float) -> Tensor:
    inputs, values = Layout.of(problem.primals), []
    for sign in (1, -1):
        moved = x.clone()
        moved[column] += sign * step
        result = problem.evaluate_fresh(inputs.unflatten(moved))
        if isinstance(result, Raised):
            return torch.full_like(measured.centre, torch.nan)
        values.append(problem.outputs.flatten(result.value))
    return (values[0] - values[1]) / (2 * step)
