"""Which outputs an input coordinate may reach: slices of the inputs are moved, and bits compared.

A coordinate reaches an output only if each of the slices in which it lies does, one in every dimension of its
tensor. That takes one forward for a slice, where a column of the Jacobian takes six or more, and gives a
superset of the pattern: exact for maps that work row by row, window by window or element by element.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.flat import Block, Layout
from gradverify.verifier.numerics.problem import Problem
from gradverify.verifier.numerics.refine import FIRST_STEP


def reached_outputs(problem: Problem, centre: Tensor, tangent: Tensor) -> Tensor:
    """Which of the M rows each column may reach: bool, M × (length of `tangent`).

    `tangent` moves the first columns of the problem, each by about its size. It is no proof: a coordinate
    whose move is lost in rounding reaches nothing here.
    """
    inputs = Layout.of(problem.primals)
    x = inputs.flatten(problem.primals)
    reached = torch.ones(centre.numel(), tangent.numel(), dtype=torch.bool)
    for block in inputs.blocks:
        if block.stop > tangent.numel():
            break
        for members in _slices(block):
            moved = x.clone()
            moved[members] += FIRST_STEP * tangent[members]
            changed = _changed(problem, inputs, moved, centre)
            reached[:, members] &= changed[:, None]
    return reached


def _slices(block: Block) -> Iterator[Tensor]:
    """Positions of the entries of every slice along every dimension that has several."""
    positions = torch.arange(block.start, block.stop)
    shape = tuple(block.shape)
    if block.chosen is not None or positions.numel() <= 1:
        yield from (positions[k : k + 1] for k in range(positions.numel()))
        return
    shaped = positions.view(shape)
    for dim, size in enumerate(shape):
        if size > 1:
            yield from (part.reshape(-1) for part in shaped.unbind(dim))


def _changed(problem: Problem, inputs: Layout, moved: Tensor, centre: Tensor) -> Tensor:
    result = problem.evaluate_fresh(inputs.unflatten(moved))
    if isinstance(result, Raised):
        return torch.ones_like(centre, dtype=torch.bool)
    return problem.outputs.flatten(result.value) != centre
