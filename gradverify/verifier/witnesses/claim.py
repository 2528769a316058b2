"""Backward's gradient at a point: what the witnesses are asked about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.calling import Gradients, Kept
from gradverify.verifier.numerics.problem import CallProblem, Graph, Layout, VjpProblem
from gradverify.verifier.witnesses.rounding import spread

Map = CallProblem | VjpProblem
"""A call of the target, or its backward as a map of inputs and grad_outputs."""


@dataclass(eq=False)
class Claim:
    """The gradients of a map, several from one forward as long as backward leaves what it saved alone."""

    problem: Map
    graph: Graph | None = None
    """One made before."""
    held: Tensor | None = None
    """Columns (bool, N) that never move: a witness has 0 there."""
    rounded: Layout | None = None
    """Grad_outputs are rounded to the formats of other outputs first."""
    missing: dict[int, bool] = field(default_factory=dict)
    """By input: whether every gradient so far was None."""

    @cached_property
    def inputs(self) -> Layout:
        """Layout of the inputs."""
        return Layout.of(self.problem.primals)

    def rows(self, cotangents: Tensor) -> Tensor | Raised:
        """Aᵀu for each row of `cotangents` (K × M): K × N, zeros where backward gives None."""
        if self.graph is None or self.graph.is_stale:
            made = self.problem.graph(self.problem.primals)
            if isinstance(made, Raised):
                return made
            self.graph = made.value
        kept = Kept.of(self.graph.outputs)
        found = self.problem.back_each(self.graph, [self._shaped(u) for u in cotangents])
        if isinstance(found, Raised) or kept.is_written:
            self.graph = None
        if isinstance(found, Raised):
            return found
        rows = torch.stack([self._flat(g) for g in found.value])
        return rows if self.held is None else torch.where(self.held, 0.0, rows)

    def row(self, cotangent: Tensor) -> Tensor | Raised:
        """Aᵀu for one grad_output (M)."""
        found = self.rows(cotangent[None])
        return found if isinstance(found, Raised) else found[0]

    def afresh(self) -> Claim:
        """The same from a forward of its own: a backward that spoils what it saved shows in the other."""
        return Claim(self.problem, held=self.held, rounded=self.rounded)

    def _shaped(self, cotangent: Tensor) -> tuple[Tensor, ...]:
        if self.rounded is not None:
            cotangent = self.rounded.flatten(self.rounded.unflatten(cotangent))
        return self.problem.outputs.unflatten(cotangent)

    def _flat(self, gradients: Gradients) -> Tensor:
        for number, gradient in enumerate(gradients):
            self.missing[number] = self.missing.get(number, True) and gradient is None
        return self.inputs.flatten(gradients)


def rows_at(problem: Map, x: Tensor, cotangents: Tensor) -> Tensor | None:
    """The gradients for some grad_outputs (K × M) at another point: K × N; None where that raises."""
    inputs = Layout.of(problem.primals)
    made = problem.graph(inputs.unflatten(x))
    if isinstance(made, Raised):
        return None
    found = problem.back_each(made.value, [problem.outputs.unflatten(u) for u in cotangents])
    return None if isinstance(found, Raised) else torch.stack([inputs.flatten(g) for g in found.value])


def spread_of_rows(problem: Map, cotangents: Tensor, epsilon: float) -> Tensor | None:
    """How far rounding in a precision moves the gradients for some grad_outputs (K × N); see `spread`."""
    twice = isinstance(problem, VjpProblem)  # whose branches may be a mistake
    x = Layout.of(problem.primals).flatten(problem.primals)
    return spread(lambda moved: rows_at(problem, moved, cotangents), x, epsilon, branches=twice)


def units(count: int, rows: Sequence[int] | None = None) -> Tensor:
    """Grad_outputs of one row each."""
    chosen = torch.arange(count) if rows is None else torch.tensor(rows, dtype=torch.int64)
    return torch.zeros(len(chosen), count, dtype=torch.float64).scatter_(1, chosen[:, None], 1.0)
