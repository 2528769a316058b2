"""A change of backward is confirmed before it is offered: at every case and at larger values.

One random grad_output each: the gradient along a direction must be the slope that forward has there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gradverify.model import Case, Point, tensors_of
from gradverify.verifier.checks.kept import Build, Kept, Place
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.diagnose.edits.own_backward import OwnBackward
from gradverify.verifier.diagnose.measured import own_backward_of, repairs_of, with_primals
from gradverify.verifier.numerics.directional_derivative import Slope, slope_along
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.probes import signed_values, tangent_of
from gradverify.verifier.numerics.tolerance import is_known

LARGER = 5.0
"""Times as large as drawn: past most thresholds of clamps and branches that ordinary values stay below."""

KEY = 31
"""Of the random grad_output and direction."""

CALLS = 20
"""Of forward and of backward that a change takes at one place, about."""

SHARES = (1.0, 2.0**-5)
"""Two steps: where forward has another slope at each, there is a kink or noise, and nothing is known."""

SAFETY = 20.0
"""How many times its measured error a slope may be off."""

SAME = 1e-6
"""Share of the sum of its terms by which a slope may differ: a change that is wrong there is grossly so."""


def further_places(visited: Sequence[Place], kept: Kept, build: Build) -> tuple[FurtherPlace, ...]:
    """One place for each case that was verified, then one at larger values, as many as may be asked."""
    most = kept.allowance.left // CALLS
    first = [place for place in visited if place.point is Point.TYPICAL and place.draw == 0]
    samples = [kept.sample(place, build) for place in first[:most]]
    judged = [one for one in samples if isinstance(one, Sample) and not one.disconnected]
    larger = [_larger(one) for one in judged if _unbounded(one.case) & {*one.problem.input_names}]
    owns = [own_backward_of(one, repairs_of(kept)) for one in (*judged, *larger)[:most]]
    return tuple(FurtherPlace(own) for own in owns if own is not None)


def _larger(sample: Sample) -> Sample:
    """The same call at larger values of the inputs that may have them."""
    free, problem = _unbounded(sample.case), sample.problem
    values = zip(problem.input_names, problem.primals, strict=True)
    primals = tuple(LARGER * value if name in free else value for name, value in values)
    return replace(sample, problem=with_primals(problem, primals))


def _unbounded(case: Case) -> set[str]:
    """Inputs of which nothing is said that larger values may contradict."""
    given = [t for one in case.inputs for t in tensors_of(one)]
    return {
        t.name
        for t in given
        if t.range is None and t.value is None and not t.structure and not t.make and t.domain != "unit"
    }


@dataclass
class FurtherPlace:
    """One call at which a change must hold that was found at others."""

    own: OwnBackward
    slopes: dict[tuple[int, int], Slope | None] = field(default_factory=dict)
    """What was measured, by output and input."""

    def refutes(self, backward: Callable[..., Any], wrong: frozenset[str]) -> bool:
        """Whether a gradient is certainly wrong here with another backward: what that alters, or was wrong.

        `wrong` names the inputs whose gradients are wrong elsewhere without it.
        """
        return self.own.is_started() and any(
            self._is_wrong(output, backward, wrong) for output in range(len(self.own.problem.outputs.blocks))
        )

    def _is_wrong(self, output: int, backward: Callable[..., Any], wrong: frozenset[str]) -> bool:
        block = self.own.problem.outputs.blocks[output]
        u = signed_values(block.stop - block.start, KEY)
        before = self.own.pulled_back(output, u, self.own.own)
        gradient = None if before is None else self.own.pulled_back(output, u, backward)
        if before is None or gradient is None:
            return before is not None
        names = self.own.problem.input_names
        return any(
            (name in wrong or not torch.equal(gradient[part], before[part]))
            and self._differs(output, source, u, gradient)
            for source, (name, part) in enumerate(zip(names, self._parts, strict=True))
        )

    @property
    def _parts(self) -> list[slice]:
        return [slice(b.start, b.stop) for b in Layout.of(self.own.problem.primals).blocks]

    def _differs(self, output: int, source: int, u: Tensor, gradient: Tensor) -> bool:
        """Whether a gradient is not the derivative by one input, along a direction of that."""
        direction = self._direction(source)
        if (output, source) not in self.slopes:
            self.slopes[output, source] = self._measured(output, u, direction)
        slope = self.slopes[output, source]
        if slope is None:
            return False
        terms = gradient * direction
        size, error = max(float(terms.abs().sum()), abs(slope.value)), SAFETY * slope.error
        known = bool(is_known(slope.value, size, slope.error))
        return known and abs(float(terms.sum()) - slope.value) > error + SAME * size

    def _direction(self, source: int) -> Tensor:
        """Every entry of one input by about its own size, the others by nothing."""
        inputs = Layout.of(self.own.problem.primals)
        whole = tangent_of(inputs.flatten(self.own.problem.primals), inputs, KEY)
        alone = torch.zeros_like(whole)
        alone[self._parts[source]] = whole[self._parts[source]]
        return alone

    def _measured(self, output: int, u: Tensor, direction: Tensor) -> Slope | None:
        """What forward has along a direction; None where that is not known."""
        if not direction.any():
            return None
        outputs = self.own.problem.outputs
        flat = torch.zeros(outputs.size, dtype=torch.float64)
        flat[outputs.blocks[output].start : outputs.blocks[output].stop] = u
        given = outputs.unflatten(flat)
        long, short = (slope_along(self.own.problem, given, direction, share) for share in SHARES)
        error = long.error + short.error
        agree = abs(long.value - short.value) <= SAFETY * error < torch.inf
        return Slope(long.value, error) if agree else None
