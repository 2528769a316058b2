"""The derivative of forward along one direction, by two or four evaluations.

    two points:    2 J T = F₁ - F₋₁
    four points:  12 J T = 8 (F₁ - F₋₁) - (F₂ - F₋₂),     F_k = f(x + k T),  T = fl(x + h v) - x

(For the weights see Fornberg, *Generation of finite difference formulas*, 1988.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.problem import Problem

DAMPING = 1024.0
"""A row counts by its error relative to |J T|_i, but to no less than its output's mean of that over this."""

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
    """What forward has along one direction, in units in which nothing needs dividing."""

    step: Tensor
    """T, N entries."""
    factor: float
    """`change` is this times the derivative along T."""
    unit: float
    """`change` is this times the derivative along v: factor · h."""
    change: Tensor
    """A difference of values of f, M entries."""
    lower_order: Tensor | None
    """The same from the two nearest values alone, M entries, where there are four."""
    size: Tensor
    """By what an error in each row of `change` counts, M entries."""
    negligible: Tensor | float
    """|change| below which a row counts by more than its own, M entries or one for all."""
    flat: bool
    """Whether forward did not move."""
    largest: float
    """The largest |f_i|, as it counts in `size`."""
    held: bool
    """Whether entries that are not finite stayed where they are."""

    @property
    def smooth(self) -> bool:
        """Whether no other step would give another derivative."""
        if self.lower_order is None:
            return False
        difference = (self.change - self.lower_order).abs()
        return bool((difference <= SMOOTH * self.size).all())

    def sees(self, allowed: float, rtol: float, least: float) -> bool:
        """Whether an error of rtol in a row of ordinary size is larger than what is allowed.

        Or what is allowed there, in the derivative along v, is no more than `least`.
        """
        share = allowed / rtol
        negligible = self.negligible
        if isinstance(negligible, float) and share * (self.largest + 2 * negligible) <= negligible:
            return True  # no row above `negligible` can be below its share then
        size = self.change.abs()
        unseen = (size > negligible) & (self.size * share > size)
        if least:
            unseen &= self.size > least / allowed * self.unit
        return not unseen.count_nonzero().item()


def central_difference(
    problem: Problem, inputs: Layout, x: Tensor, tangent: Tensor, level: Level
) -> CentralDifference | None:
    """The derivative along a direction; None where forward raises or is not finite there."""
    exact = torch.add(x, tangent, alpha=level.step).sub_(x)
    found = _along(problem, inputs, x, exact, level)
    if found is None and not x.isfinite().all():
        exact = torch.where(x.isfinite(), exact, 0.0)
        found = _along(problem, inputs, x, exact, level)
        return None if found is None else replace(found, held=True)
    return found


def _along(
    problem: Problem, inputs: Layout, x: Tensor, exact: Tensor, level: Level
) -> CentralDifference | None:
    moved = inputs.moving(x, exact)
    near = _between(problem, moved, 1)
    if near is None:
        return None
    change, size = near
    lower_order, factor = None, 2.0
    if level.four_points:
        far = _between(problem, moved, 2)
        if far is None:
            return None
        change, lower_order, factor = change * 8 - far[0], change * 6, 12.0
    magnitude = change.abs()
    total = magnitude.sum().item()
    negligible = _negligible(problem.outputs, magnitude, total)
    if negligible is None:
        return None
    unit = factor * level.step
    largest = NOISY * unit * size.max().item()
    size = magnitude.add_(size, alpha=NOISY * unit).add_(negligible + TINIEST)
    return CentralDifference(
        exact, factor, unit, change, lower_order, size, negligible, total == 0, largest, held=False
    )


def flat_on_one_side(problem: Problem, inputs: Layout, x: Tensor, step: Tensor) -> bool:
    """Whether no row of f moves by a step both ways: each has its value at x on one side at least."""
    step = torch.where(x.isfinite(), step, 0.0)
    here, ahead, behind = (_copied(problem, point) for point in map(inputs.moving(x, step), (0, 1, -1)))
    if here is None or ahead is None or behind is None:
        return False
    return bool(((here == ahead) | (here == behind)).all())


def _copied(problem: Problem, point: tuple[Tensor, ...]) -> Tensor | None:
    values = _at(problem, point)
    return None if values is None else values.clone()


def _between(
    problem: Problem, moved: Callable[[float], tuple[Tensor, ...]], k: int
) -> tuple[Tensor, Tensor] | None:
    """(F_k - F_-k, |F_k|), as vectors; None where forward raises.

    A forward may return the same memory every time: its values are copied, then, before it is called again.
    """
    ahead = _at(problem, moved(k))
    behind = None if ahead is None else _at(problem, moved(-k))
    if ahead is not None and behind is not None and ahead.data_ptr() == behind.data_ptr():
        ahead = _at(problem, moved(k))
        ahead = None if ahead is None else ahead.clone()
        behind = _at(problem, moved(-k))
    return None if ahead is None or behind is None else (ahead - behind, ahead.abs())


def _at(problem: Problem, point: tuple[Tensor, ...]) -> Tensor | None:
    """Value of f at a point, as one vector. None where it raises."""
    result = problem.evaluate_fresh(point)
    if isinstance(result, Raised):
        return None
    if len(result.value) == 1:
        return problem.outputs.flattened(result.value)[0]
    return problem.outputs.flatten(result.value)


def _negligible(outputs: Layout, size: Tensor, total: float) -> Tensor | float | None:
    """For each row a share of the mean of its output's rows; None where a row is not finite."""
    if not math.isfinite(total):
        return None
    if len(outputs.blocks) == 1:
        return total / size.numel() / DAMPING
    means = torch.cat([part.mean().expand(part.numel()) for part in outputs.cut(size) if part.numel()])
    return means / DAMPING
