"""The Jacobian that backward claims."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.problem import Problem

FEW_ROWS = 2
"""Up to this many rows a graph for each costs no more than one graph and its verification."""

SAME_ROWS = 1e-12
"""Rows of one graph are taken when a fresh graph gives their mixture to within this share of its terms."""


def analytical_jacobian(problem: Problem) -> Returned[Tensor] | Raised:
    """The Jacobian that backward claims: one backward for each output coordinate.

    The grad_outputs of the other outputs stay undefined, as they are when a user differentiates one. Each
    row is what backward gives on a fresh graph: rows are taken from one graph only where a fresh one
    confirms them, so a backward that spoils what it saved cannot spoil other rows.
    """
    count = problem.outputs.size
    if count > FEW_ROWS:
        together = analytical_rows(problem, range(count), problem.primals)
        if isinstance(together, Returned) and _repeats(problem, together.value):
            return together
    rows = torch.zeros(count, Layout.of(problem.primals).size, dtype=torch.float64)
    for position in range(count):
        row = analytical_rows(problem, (position,), problem.primals)
        if isinstance(row, Raised):
            return row
        rows[position] = row.value[0]
    return Returned(rows)


def analytical_rows(
    problem: Problem, positions: Iterable[int], primals: Sequence[Tensor], scale: float = 1.0
) -> Returned[Tensor] | Raised:
    """Some rows, from one graph: backward of `scale` times each unit grad_output, divided by it.

    (number of positions) × N.
    """
    inputs = Layout.of(problem.primals)
    units = (unit_cotangent(problem, position, scale) for position in positions)
    result = problem.pull_back_each(primals, units)
    if isinstance(result, Raised):
        return result
    rows = [inputs.flatten(gradients) for gradients in result.value]
    return Returned(torch.stack(rows) / scale if rows else torch.zeros(0, inputs.size, dtype=torch.float64))


def unit_cotangent(problem: Problem, position: int, scale: float = 1.0) -> list[Tensor | None]:
    """The grad_outputs that are `scale` at one output coordinate; other outputs' stay undefined."""
    unit = torch.zeros(problem.outputs.size, dtype=torch.float64)
    unit[position] = scale
    return _alone(problem, position, unit)


def _alone(problem: Problem, position: int, flat: Tensor) -> list[Tensor | None]:
    """grad_outputs of the output that a row belongs to; the others' stay undefined."""
    block = problem.outputs.block_of(position)
    return [t if number == block else None for number, t in enumerate(problem.outputs.unflatten(flat))]


def _repeats(problem: Problem, rows: Tensor) -> bool:
    """Whether fresh graphs give the same: a random mixture of each output's rows in one backward."""
    inputs, generator = Layout.of(problem.primals), torch.Generator().manual_seed(20_262)
    u = torch.rand(rows.shape[0], generator=generator, dtype=torch.float64) + 0.5
    for own in problem.outputs.slices:
        fresh = problem.pull_back(problem.primals, _alone(problem, own.start, u))
        if isinstance(fresh, Raised):
            return False
        mixed, terms = u[own] @ rows[own], u[own] @ rows[own].abs()
        if not ((inputs.flatten(fresh.value) - mixed).abs() <= SAME_ROWS * terms).all():
            return False
    return True
