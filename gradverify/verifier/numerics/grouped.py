"""Inputs that move together: a problem of as many numbers as there are groups of them.

One group is the problem along a direction; its Jacobian is the column J v.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.calling import Gradients, Tensors
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.problem import Problem


@dataclass(frozen=True)
class Grouped:
    """The map t -> f(x + Σ (t_g - 1) v_g): as many numbers as groups, each of which moves its inputs."""

    problem: Problem
    inputs: Layout
    x: Tensor
    """The inputs, N entries."""
    tangent: Tensor
    """v of the first inputs, each about as large as its input: so 1 is the scale of t. The others stay."""
    group: Tensor
    """The number of the group that each of these belongs to."""
    count: int
    """How many groups there are."""

    @cached_property
    def primals(self) -> Tensors:
        """The numbers t."""
        return (torch.ones(self.count, dtype=torch.float64),)

    @property
    def input_names(self) -> tuple[str, ...]:
        """It has no name of the user's."""
        return ("t",)

    @property
    def output_positions(self) -> tuple[int, ...]:
        """Those of the problem."""
        return self.problem.output_positions

    @property
    def outputs(self) -> Layout:
        """Those of the problem."""
        return self.problem.outputs

    def evaluate(self, primals: Sequence[Tensor]) -> Returned[Tensors] | Raised:
        """Values of f where every group has moved."""
        return self.evaluate_fresh(primals)

    def evaluate_fresh(self, primals: Sequence[Tensor]) -> Returned[Tensors] | Raised:
        """Values of f where every group has moved."""
        return self.problem.evaluate_fresh(self._at(primals[0]))

    def pull_back_each(
        self, primals: Sequence[Tensor], cotangents: Iterable[Sequence[Tensor | None]]
    ) -> Returned[list[Gradients]] | Raised:
        """The sums of (Aᵀu)·v over each group, for each u."""
        result = self.problem.pull_back_each(self._at(primals[0]), cotangents)
        if isinstance(result, Raised):
            return result
        return Returned([self._slopes(gradients) for gradients in result.value])

    def pull_back(
        self, primals: Sequence[Tensor], cotangents: Sequence[Tensor | None]
    ) -> Returned[Gradients] | Raised:
        """The sums of (Aᵀu)·v over each group."""
        result = self.problem.pull_back(self._at(primals[0]), cotangents)
        return result if isinstance(result, Raised) else Returned(self._slopes(result.value))

    def compressed(self, jacobian: Tensor) -> Tensor:
        """J V: M × (number of groups), of the columns of a Jacobian that move."""
        if self.count == 1:  # a dot product rounds less than a running sum
            return (jacobian @ self.tangent)[:, None]
        slopes = jacobian.new_zeros(jacobian.shape[0], self.count)
        return slopes.index_add_(1, self.group, jacobian * self.tangent)

    def _at(self, t: Tensor) -> Tensors:
        moved = self.x.clone()
        moved[: self.tangent.numel()] += (t - 1)[self.group] * self.tangent
        return self.inputs.unflatten(moved)

    def _slopes(self, gradients: Gradients) -> Gradients:
        row = self.inputs.flatten(gradients)[None, : self.tangent.numel()]
        return (self.compressed(row)[0],)


def along(problem: Problem, inputs: Layout, x: Tensor, tangent: Tensor) -> Grouped:
    """The map t -> f(x + (t - 1) v) of one number, at t = 1; `x` and v (`tangent`) have all N entries."""
    return Grouped(problem, inputs, x, tangent, torch.zeros(1, dtype=torch.long).expand(tangent.numel()), 1)
