"""Some entries of a problem that is too large to look at whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.calling import Gradients, Tensors
from gradverify.verifier.numerics.flat import Block, Layout
from gradverify.verifier.numerics.problem import Problem


@dataclass(frozen=True)
class Restricted:
    """Some inputs' entries to some outputs' entries, everything else held: a submatrix of the Jacobian."""

    problem: Problem
    inputs: Layout
    x: Tensor
    """All inputs, N entries."""
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

    @property
    def input_names(self) -> tuple[str, ...]:
        """Those of the problem."""
        return self.problem.input_names

    @property
    def output_positions(self) -> tuple[int, ...]:
        """Those of the problem."""
        return self.problem.output_positions

    def evaluate(self, primals: Sequence[Tensor]) -> Returned[Tensors] | Raised:
        """The chosen rows of f."""
        return self.evaluate_fresh(primals)

    def evaluate_fresh(self, primals: Sequence[Tensor]) -> Returned[Tensors] | Raised:
        """The chosen rows of f."""
        result = self.problem.evaluate_fresh(self._whole(primals))
        if isinstance(result, Raised):
            return result
        values = self.problem.outputs.flatten(result.value)
        return Returned(self.outputs.unflatten(values[list(self.rows)]))

    def pull_back_each(
        self, primals: Sequence[Tensor], cotangents: Iterable[Sequence[Tensor | None]]
    ) -> Returned[list[Gradients]] | Raised:
        """The chosen columns of Aᵀu for each u that is zero outside the chosen rows."""
        whole = (self._whole_cotangents(u) for u in cotangents)
        result = self.problem.pull_back_each(self._whole(primals), whole)
        if isinstance(result, Raised):
            return result
        return Returned([self._chosen(gradients) for gradients in result.value])

    def pull_back(
        self, primals: Sequence[Tensor], cotangents: Sequence[Tensor | None]
    ) -> Returned[Gradients] | Raised:
        """The chosen columns of Aᵀu for a u that is zero outside the chosen rows."""
        result = self.problem.pull_back(self._whole(primals), self._whole_cotangents(cotangents))
        return result if isinstance(result, Raised) else Returned(self._chosen(result.value))

    def _whole(self, primals: Sequence[Tensor]) -> Tensors:
        moved = self.x.clone()
        moved[list(self.columns)] = self.chosen_inputs.flatten(primals)
        return self.inputs.unflatten(moved)

    def _whole_cotangents(self, cotangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        flat = torch.zeros(self.problem.outputs.size, dtype=torch.float64)
        flat[list(self.rows)] = self.outputs.flatten(cotangents)
        whole = self.problem.outputs.unflatten(flat)
        return [None if u is None else t for u, t in zip(cotangents, whole, strict=True)]

    def _chosen(self, gradients: Gradients) -> Gradients:
        return self.chosen_inputs.unflatten(self.inputs.flatten(gradients)[list(self.columns)])


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
