"""The derivative of forward along one direction, by two or four evaluations.

    two points:   D = (F₁ - F₋₁) / 2h
    four points:  D = (8 (F₁ - F₋₁) - (F₂ - F₋₂)) / 12h,     F_k = f(x + k T),  T = fl(x + h v) - x

(For the weights see Fornberg, *Generation of finite difference formulas*, 1988.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.problem import Problem

DAMPING = 1024.0
"""A row counts by its error relative to |D_i|, but to no less than its output's mean |D| over this."""

NOISY = 2.0**-7
"""Nor to less than this share of |f_i|: so the rounding of f, a few times 2^-52 |f_i|, over the step stays
below the residual that is allowed at each level."""

SMOOTH = 3e-6
"""Where the second-order and the fourth-order difference agree to this share, the latter is off by about its
square, a tenth of what the first level allows: what does not close then is no matter of the step."""

TINIEST = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class Level:
    """How forward is asked, and how far backward may be off."""

    step: float
    """h, in units of each entry's size."""
    allowed: float
    """The residual allowed for one row of weight one."""
    four_points: bool = True


@dataclass(frozen=True)
class CentralDifference:
    """What forward has along one direction."""

    step: Tensor
    """T / h, N entries."""
    derivative: Tensor
    """D, M entries."""
    lower_order: Tensor | None
    """(F₁ - F₋₁) / 2h, M entries, where D is of the fourth order."""
    size: Tensor
    """By what an error in each row counts, M entries."""
    negligible: Tensor | float
    """|D| below which a row counts by more than its own, M entries or one for all."""

    @property
    def flat(self) -> bool:
        """Whether forward did not move."""
        return not self.derivative.count_nonzero().item()

    @property
    def smooth(self) -> bool:
        """Whether no other step would give another derivative."""
        if self.lower_order is None:
            return False
        difference = (self.derivative - self.lower_order).abs()
        return bool((difference <= SMOOTH * self.size).all())

    def sees(self, allowed: float, rtol: float) -> bool:
        """Whether an error of rtol in a row of ordinary size is larger than what is allowed."""
        size = self.derivative.abs()
        return not ((size > self.negligible) & (self.size * (allowed / rtol) > size)).count_nonzero().item()


def central_difference(problem: Problem, inputs: Layout, x: Tensor, tangent: Tensor, level: Level) -> CentralDifference | None:
    """The derivative along a direction; None where forward raises or is not finite there.

    Each value is used up before the next evaluation: a forward may return the same memory every time.
    """
    exact = torch.add(x, tangent, alpha=level.step).sub_(x)
    moved = inputs.moving(x, exact)
    values: list[Tensor] = []
    for k in (1, 2) if level.four_points else (1,):
        ahead = _at(problem, moved(k), keep=True)
        behind = None if ahead is None else _at(problem, moved(-k))
        if ahead is None or behind is None:
            return None
        if k == 1:
            noisy = ahead.abs().mul_(NOISY)
        values.append(ahead.sub_(behind))
    near = values[0]
    lower_order = near / (2 * level.step)
    derivative = torch.sub(8 * near, values[1]).div_(12 * level.step) if level.four_points else lower_order
    magnitude = derivative.abs()
    negligible = _negligible(problem.outputs, magnitude)
    if negligible is None:
        return None
    size = noisy.add_(magnitude).add_(negligible + TINIEST)
    return CentralDifference(
        exact.div_(level.step), derivative, lower_order if level.four_points else None, size, negligible
    )


def _at(problem: Problem, point: tuple[Tensor, ...], *, keep: bool = False) -> Tensor | None:
    """f at a point, as one vector; of its own where it is kept. None where it raises."""
    result = problem.evaluate_fresh(point)
    if isinstance(result, Raised):
        return None
    outputs = problem.outputs
    if len(outputs.blocks) == 1:
        (vector,) = outputs.flattened(result.value)
        if vector is not None:
            return vector.clone() if keep else vector
    return outputs.flatten(result.value)


def _negligible(outputs: Layout, size: Tensor) -> Tensor | float | None:
    """For each row a share of the mean of its output's rows; None where a row is not finite."""
    if len(outputs.blocks) == 1:
        mean = size.sum().item() / max(1, size.numel())
        return mean / DAMPING if math.isfinite(mean) else None
    means = torch.cat([part.mean().expand(part.numel()) for part in outputs.cut(size) if part.numel()])
    return means / DAMPING if bool(means.isfinite().all()) else None
