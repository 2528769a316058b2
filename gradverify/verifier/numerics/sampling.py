"""Moving one input coordinate at a time, by steps that fit its size."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.difference import OFFSETS, Samples, six_point
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.problem import Problem

SMALLEST_SCALE = 2.0**-8
"""An entry near zero is moved by this share of its tensor's typical magnitude."""

VALUES_AT_ONCE = 2**20
"""Values of f that are combined at once: seven float64 arrays of them take 56 MB."""


class Sampler:
    """Evaluates the neighbourhoods of coordinates; keeps the flat point, its value and its scales."""

    def __init__(self, problem: Problem, centre: Tensor) -> None:
        self._problem = problem
        self._inputs = Layout.of(problem.primals)
        self.centre = centre
        self._nothing = torch.full_like(centre, torch.nan)
        self._offsets = torch.tensor(OFFSETS, dtype=torch.float64)
        self.x = self._inputs.flatten(problem.primals)
        self.scales = scales_of(self.x, self._inputs)

    def sample(self, columns: Sequence[int], steps: Tensor) -> Samples:
        """Six points around each of some coordinates: tensors of (number of columns) × M."""
        at_once = max(1, VALUES_AT_ONCE // max(1, self.centre.numel()))
        groups = [slice(k, k + at_once) for k in range(0, max(1, len(columns)), at_once)]
        return Samples.joined([self._group(columns[g], steps[g]) for g in groups])

    def _group(self, columns: Sequence[int], steps: Tensor) -> Samples:
        here = self.x[list(columns)]
        exact = (here + steps) - here
        rows = []
        for j, points in zip(columns, here[:, None] + exact[:, None] * self._offsets, strict=True):
            moved = self.x.repeat(len(OFFSETS), 1)
            moved[:, j] = points
            rows += [self._at(vector) for vector in moved]
        shape = (len(columns), len(OFFSETS), self.centre.numel())
        values = torch.stack(rows).view(shape) if rows else self.centre.new_zeros(shape)
        return six_point(dict(zip(OFFSETS, values.unbind(1), strict=True)), self.centre, exact[:, None])

    def _at(self, vector: Tensor) -> Tensor:
        result = self._problem.evaluate_fresh(self._inputs.unflatten(vector))
        if isinstance(result, Raised):
            return self._nothing
        return self._problem.outputs.flatten(result.value)


def scales_of(x: Tensor, inputs: Layout) -> Tensor:
    """A power of two near each entry's magnitude, kept within a range of its tensor's typical one."""
    scales = torch.ones_like(x)
    for block in inputs.blocks:
        part = x[block.start : block.stop].abs()
        nonzero = part[(part > 0) & part.isfinite()]
        typical = nonzero.median().item() if nonzero.numel() else 1.0
        typical = 2.0 ** math.floor(math.log2(typical))
        clamped = part.nan_to_num(typical, typical, typical).clamp(SMALLEST_SCALE * typical, typical)
        scales[block.start : block.stop] = torch.exp2(clamped.log2().floor())
    return scales
