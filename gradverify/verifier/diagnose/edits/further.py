"""A change of backward at further places: other cases and larger values, one random grad_output each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier.diagnose.edits.own_backward import OwnBackward
from gradverify.verifier.diagnose.evidence import Pair
from gradverify.verifier.numerics.directional_derivative import Slope, slope_along
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.probes import signed_values, tangent_of

KEY = 31
"""Of the random grad_output and direction."""

SHARES = (1.0, 2.0**-5)
"""Two steps: where forward has another slope at each, there is a kink or noise, and nothing is known."""

SAFETY = 20.0
"""How many times its measured error a slope may be off."""

SAME = 1e-6
"""Share of the sum of its terms by which a slope may differ: a change that is wrong there is grossly so."""


@dataclass
class FurtherPlace:
    """One call at which a change must hold that was found at others."""

    own: OwnBackward
    slopes: dict[tuple[int, int], Slope | None] = field(default_factory=dict)
    """What was measured, by output and input."""

    def refutes(self, pair: Pair, backward: Callable[..., Any]) -> bool:
        """Whether a block is certainly wrong here with another backward, or one that it alone alters is."""
        problem, there = self.own.problem, pair.point.own_backward
        position = None if there is None else there.problem.output_positions[pair.output]
        if position not in problem.output_positions or pair.name not in problem.input_names:
            return False
        output = problem.output_positions.index(position)
        block = problem.outputs.blocks[output]
        u = signed_values(block.stop - block.start, KEY)
        before = self.own.pulled_back(output, u, self.own.own) if self.own.is_started() else None
        if before is None:
            return False
        gradient = self.own.pulled_back(output, u, backward)
        if gradient is None:
            return self._slope(output, problem.input_names.index(pair.name), u) is not None
        return any(
            (name == pair.name or not torch.equal(gradient[part], before[part]))
            and self._differs(output, source, u, gradient)
            for source, (name, part) in enumerate(zip(problem.input_names, self._parts, strict=True))
        )

    @property
    def _parts(self) -> list[slice]:
        return [slice(b.start, b.stop) for b in Layout.of(self.own.problem.primals).blocks]

    def _differs(self, output: int, source: int, u: Tensor, gradient: Tensor) -> bool:
        """Whether a gradient is not the derivative by one input, along a direction of that."""
        slope = self._slope(output, source, u)
        if slope is None:
            return False
        terms = gradient * self._direction(source)
        size = max(float(terms.abs().sum()), abs(slope.value))
        return abs(float(terms.sum()) - slope.value) > SAFETY * slope.error + SAME * size

    def _direction(self, source: int) -> Tensor:
        """Every entry of one input by about its own size, the others by nothing."""
        inputs = Layout.of(self.own.problem.primals)
        whole = tangent_of(inputs.flatten(self.own.problem.primals), inputs, KEY)
        alone = torch.zeros_like(whole)
        alone[self._parts[source]] = whole[self._parts[source]]
        return alone

    def _slope(self, output: int, source: int, u: Tensor) -> Slope | None:
        """What forward has along that direction, measured once; None where that cannot be told."""
        if (output, source) not in self.slopes:
            outputs = self.own.problem.outputs
            flat = torch.zeros(outputs.size, dtype=torch.float64)
            flat[outputs.blocks[output].start : outputs.blocks[output].stop] = u
            self.slopes[output, source] = self._measured(outputs.unflatten(flat), self._direction(source))
        return self.slopes[output, source]

    def _measured(self, u: Sequence[Tensor], direction: Tensor) -> Slope | None:
        if not direction.any():
            return None
        long, short = (slope_along(self.own.problem, u, direction, share) for share in SHARES)
        error = long.error + short.error
        agree = abs(long.value - short.value) <= SAFETY * error < torch.inf
        return Slope(long.value, error) if agree else None
