"""Smaller problems within a problem: inputs that move together, or some entries with everything else held."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.calling import Gradients, Tensors
from gradverify.verifier.numerics.flat import Block, Layout
from gradverify.verifier.numerics.problem import Cotangents, Part, Problem, whole


@dataclass(frozen=True)
class _Submap:
    """A map into the inputs of a problem, the problem, and a map from its outputs."""

    problem: Problem
    inputs: Layout
    x: Tensor
    """All inputs of the problem, N entries."""

    @cached_property
    def outputs(self) -> Layout:
        return self.problem.outputs

    def evaluate(self, primals: Sequence[Tensor]) -> Returned[Tensors] | Raised:
        return self.evaluate_fresh(primals)  # the problem gets tensors of its own

    def evaluate_fresh(self, primals: Sequence[Tensor]) -> Returned[Tensors] | Raised:
        result = self.problem.evaluate_fresh(self._whole(primals))
        return result if isinstance(result, Raised) else Returned(self._seen(result.value))

    def pull_back_each(
        self, primals: Sequence[Tensor], cotangents: Iterable[Cotangents], part: Part = whole
    ) -> Returned[list[Gradients]] | Raised:
        given = (self._whole_cotangents(u) for u in cotangents)
        return self.problem.pull_back_each(self._whole(primals), given, lambda g: part(self._part(g)))

    def pull_back(self, primals: Sequence[Tensor], cotangents: Cotangents) -> Returned[Gradients] | Raised:
        result = self.problem.pull_back(self._whole(primals), self._whole_cotangents(cotangents))
        return result if isinstance(result, Raised) else Returned(self._part(result.value))

    def _whole(self, primals: Sequence[Tensor]) -> Tensors:
        raise NotImplementedError

    def _part(self, gradients: Gradients) -> Gradients:
        raise NotImplementedError

    def _seen(self, values: Tensors) -> Tensors:
        return values

    def _whole_cotangents(self, cotangents: Cotangents) -> Cotangents:
        return cotangents


@dataclass(frozen=True)
class Grouped(_Submap):
    """The map t -> f(x + Σ (t_g - 1) v_g): as many numbers as groups, each of which moves its inputs.

    One group is the problem along a direction; its Jacobian is the column J v.
    """

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

    def compressed(self, jacobian: Tensor) -> Tensor:
        """J V: M × (number of groups), of the columns of a Jacobian that move."""
        if self.count == 1:  # a dot product rounds less than a running sum
            return (jacobian @ self.tangent)[:, None]
        slopes = jacobian.new_zeros(jacobian.shape[0], self.count)
        return slopes.index_add_(1, self.group, jacobian * self.tangent)

    def _whole(self, primals: Sequence[Tensor]) -> Tensors:
        moved = self.x.clone()
        moved[: self.tangent.numel()] += (primals[0] - 1)[self.group] * self.tangent
        return self.inputs.unflatten(moved)

    def _part(self, gradients: Gradients) -> Gradients:
        row = self.inputs.flatten(gradients)[None, : self.tangent.numel()]
        return (self.compressed(row)[0],)


def along(problem: Problem, inputs: Layout, x: Tensor, tangent: Tensor) -> Grouped:
    """The map t -> f(x + (t - 1) v) of one number, at t = 1; `x` and v (`tangent`) have all N entries."""
    return Grouped(problem, inputs, x, tangent, torch.zeros(1, dtype=torch.long).expand(tangent.numel()), 1)


@dataclass(frozen=True)
class Restricted(_Submap):
    """Some inputs' entries to some outputs' entries, everything else held: a submatrix of the Jacobian."""

    columns: tuple[int, ...]
    """Positions among the N, ascending."""
    rows: tuple[int, ...]
    """Positions among the M, ascending."""

    @cached_property
    def chosen_inputs(self) -> Layout:
        """The chosen columns; a block's index is that in the whole tensor."""
        return chosen_of(self.inputs, self.columns)

    @cached_property
    def outputs(self) -> Layout:
        """The chosen rows; a block's index is that in the whole tensor."""
        return chosen_of(self.problem.outputs, self.rows)

    @cached_property
    def primals(self) -> Tensors:
        """The chosen entries of each input, as vectors."""
        return self.chosen_inputs.unflatten(self.x[list(self.columns)])

    def _whole(self, primals: Sequence[Tensor]) -> Tensors:
        moved = self.x.clone()
        moved[list(self.columns)] = self.chosen_inputs.flatten(primals)
        return self.inputs.unflatten(moved)

    def _part(self, gradients: Gradients) -> Gradients:
        return self.chosen_inputs.unflatten(self.inputs.flatten(gradients)[list(self.columns)])

    def _seen(self, values: Tensors) -> Tensors:
        return self.outputs.unflatten(self.problem.outputs.flatten(values)[list(self.rows)])

    def _whole_cotangents(self, cotangents: Cotangents) -> Cotangents:
        flat = torch.zeros(self.problem.outputs.size, dtype=torch.float64)
        flat[list(self.rows)] = self.outputs.flatten(cotangents)
        whole = self.problem.outputs.unflatten(flat)
        return [None if u is None else t for u, t in zip(cotangents, whole, strict=True)]


def chosen_of(layout: Layout, positions: Sequence[int]) -> Layout:
    """A layout of vectors that hold some coordinates of each tensor; complex numbers count twice."""
    blocks, start = [], 0
    for block in layout.blocks:
        own = [p for p in positions if block.start <= p < block.stop]
        dtype = block.dtype.to_real() if block.is_complex else block.dtype
        chosen = tuple(block.index(p) for p in own)
        blocks.append(Block((len(own),), dtype, torch.device("cpu"), start, start + len(own), chosen))
        start += len(own)
    return Layout(tuple(blocks))
