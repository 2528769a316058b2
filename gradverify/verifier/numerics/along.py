"""The derivative of one functional of the outputs along one direction: six forwards for one number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.difference import EPSILON, OFFSETS, six_point
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.problem import Problem
from gradverify.verifier.numerics.sampling import scales_of

LONGEST_STEP = 2.0**-6
"""Step along a direction, in units of the coordinate that it moves most for its size."""


@dataclass(frozen=True)
class Slope:
    """A measured directional derivative and how far it may be off, absolute."""

    value: float
    error: float
    """Infinite where forward is not finite nearby."""


def slope_along(problem: Problem, u: Sequence[Tensor | None], direction: Tensor, share: float) -> Slope:
    """D6 of t -> u·f(x + t d) at 0, with a step of `share` of the longest one.

    `direction` has N entries and is not zero. Outputs without a grad_output do not count.
    """
    inputs = Layout.of(problem.primals)
    x, weights = inputs.flatten(problem.primals), problem.outputs.flatten(u)
    step = share * LONGEST_STEP / (direction / scales_of(x, inputs)).abs().max().item()
    values = {}
    size = 0.0
    for offset in (0, *OFFSETS):
        result = problem.evaluate_fresh(inputs.unflatten(x + offset * step * direction))
        if isinstance(result, Raised):
            return Slope(0.0, torch.inf)
        terms = weights * problem.outputs.flatten(result.value)
        size = max(size, terms.abs().sum().item())
        values[offset] = terms.sum()[None]
    samples = six_point({k: values[k] for k in OFFSETS}, values[0], torch.tensor([step], dtype=torch.float64))
    error = samples.error(torch.tensor([EPSILON * size], dtype=torch.float64))
    return Slope(samples.derivative.item(), error.item())
