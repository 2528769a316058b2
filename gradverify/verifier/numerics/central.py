"""The derivative of forward along one direction, by two or four evaluations.

    two points:    2 J T = F₁ - F₋₁
    four points:  12 J T = 8 (F₁ - F₋₁) - (F₂ - F₋₂),     F_k = f(x + k T),  T = fl(x + h v) - x

(For the weights see Fornberg, *Generation of finite difference formulas*, 1988.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.flat import Layout, vector_of

DAMPING = 1024.0
"""A row counts by its error relative to |J T|_i, but to no less than its output's mean of that over this."""

NOISY = 2.0**-7
"""Nor to less than this share of |f_i|: so the rounding of f, a few times 2^-52 |f_i|, over the step stays
below the residual that is allowed at each level."""

SMOOTH = 3e-6
"""Where the second-order and the fourth-order difference agree to this share, the latter is off by about its
square, a tenth of what the first level allows: what does not close then is no matter of the step."""

BROKEN = 2.0**-8
"""Where they differ by a larger share, a kink or a jump lies between. Of the 480 rows of a saturated
attention none is above 2^-12, of two million in a grid of cells some hundred are."""

FOUR_POINTS = 12.0
"""The difference of four values is this times the derivative."""

TINIEST = torch.finfo(torch.float64).tiny


class Forward(Protocol):
    """A map that can be evaluated: all that is asked of a problem here."""

    @property
    def outputs(self) -> Layout:
        """Shapes and dtypes of the m outputs."""

    def evaluate_fresh(self, primals: Sequence[Tensor]) -> Returned[tuple[Tensor, ...]] | Raised:
        """The m outputs at values of the inputs that nobody else holds."""


@dataclass(frozen=True)
class Level:
    """How forward is asked, and how far backward may be off."""

    step: float
    """h, in units of each entry's size."""
    allowed: float
    """The residual allowed for one row of weight one."""


class Weighed(NamedTuple):
    """A difference of values of f, and by what each of its rows counts."""

    change: Tensor
    """The difference, M entries."""
    size: Tensor
    """By what an error in each row of `change` counts, M entries."""
    negligible: Tensor | float
    """|change| below which a row counts by more than its own, M entries or one for all."""
    flat: bool
    """Whether forward did not move."""
    largest: float
    """The largest |f_i|, as it counts in `size`."""
    unit: float
    """`change` is this times the derivative along v: the factor of the difference times h."""

    def at_least(self, least: float) -> Weighed:
        """The same where a row counts by no less than `least`, a derivative along v."""
        least *= self.unit
        before = self.negligible
        after = max(before, least) if isinstance(before, float) else before.clamp(min=least)
        return self._replace(size=self.size + (after - before), negligible=after)

    def sees(self, allowed: float, rtol: float, least: Callable[[], float]) -> bool:
        """Whether an error of rtol in a row of ordinary size is larger than what is allowed.

        Or what is allowed there, in the derivative along v, is no more than `least`.
        """
        share = allowed / rtol
        negligible = self.negligible
        if isinstance(negligible, float) and share * (self.largest + 2 * negligible) <= negligible:
            return True  # no row above `negligible` can be below its share then
        size = self.change.abs()
        unseen = self.size * share > size
        if not unseen.count_nonzero().item():
            return True
        unseen &= size > negligible
        if not unseen.count_nonzero().item():
            return True
        unseen &= self.size > least() / allowed * self.unit
        return not unseen.count_nonzero().item()


@dataclass(frozen=True)
class CentralDifference:
    """What forward has along one direction, in units in which nothing needs dividing."""

    x: Tensor
    """N entries."""
    tangent: Tensor
    """v, N entries."""
    length: float
    """h."""
    weighed: Weighed
    """The change is `FOUR_POINTS` times the derivative along T."""
    lower_order: Tensor
    """The same change from the two nearest values alone, M entries."""

    @property
    def step(self) -> Tensor:
        """T, N entries: made when it is asked for, to be out of the way while user code runs."""
        return exact_step(self.x, self.tangent, self.length)

    @property
    def held(self) -> bool:
        """Whether entries that are not finite stay where they are."""
        return not math.isfinite(self.x.sum().item())

    @property
    def smooth(self) -> bool:
        """Whether no other step would give another derivative."""
        return self._differs_by(SMOOTH, 0.0)

    def unbroken(self, least: float) -> bool:
        """Whether nothing breaks on the way, where rows count by no less than `least`, a derivative."""
        return self._differs_by(BROKEN, least * self.weighed.unit)

    def _differs_by(self, share: float, least: float) -> bool:
        difference = (self.weighed.change - self.lower_order).abs()
        size = self.weighed.size.clamp(min=least) if least else self.weighed.size
        return bool((difference <= share * size).all())


def central_difference(
    problem: Forward,
    inputs: Layout,
    x: Tensor,
    tangent: Tensor,
    level: Level,
    least: float = 0.0,
    damping: float = DAMPING,
) -> CentralDifference | None:
    """The derivative along a direction; None where forward raises or is not finite there.

    A row counts by no less than `least`, a derivative, and the mean of its output's over `damping`.
    """
    exact = exact_step(x, tangent, level.step)
    moved = inputs.moving(x, exact)
    near = difference(problem, moved, 1)
    far = None if near is None else difference(problem, moved, 2)
    if near is None or far is None:
        return None
    unit = FOUR_POINTS * level.step
    weighed = weigh(problem.outputs, near[0] * 8 - far[0], near[1], unit, least=least, damping=damping)
    return None if weighed is None else CentralDifference(x, tangent, level.step, weighed, near[0].mul_(6))


def exact_step(x: Tensor, tangent: Tensor, length: float) -> Tensor:
    """T = fl(x + h v) - x; zero for an entry that is not finite, which no step moves."""
    exact = torch.add(x, tangent, alpha=length).sub_(x)
    return exact if math.isfinite(exact.sum().item()) else torch.where(x.isfinite(), exact, 0.0)


def weigh(
    outputs: Layout,
    change: Tensor,
    value: Tensor,
    unit: float,
    *,
    least: float = 0.0,
    damping: float = DAMPING,
) -> Weighed | None:
    """By what each row of a change counts beside the size of f; None where a row is not finite.

    `value` is f at one of the points, M entries. `unit` is what makes a derivative along v a change, and
    `least` such a derivative, by which a row counts at least.
    """
    magnitude = change.abs()
    total = magnitude.sum().item()
    if not math.isfinite(total):
        return None
    negligible = _negligible(outputs, magnitude, total, least * unit, damping)
    value = value.abs()
    largest = NOISY * unit * value.max().item()
    size = magnitude.add_(value, alpha=NOISY * unit).add_(negligible + TINIEST)
    return Weighed(change, size, negligible, total == 0, largest, unit)


def difference(
    problem: Forward, moved: Callable[[float], Sequence[Tensor]], k: float
) -> tuple[Tensor, Tensor] | None:
    """(F_k - F_-k, F_k), as vectors; None where forward raises.

    A forward may return the same memory every time: its values are copied, then, before it is called again.
    """
    ahead = value_at(problem, moved(k))
    behind = None if ahead is None else value_at(problem, moved(-k))
    if ahead is not None and behind is not None and ahead.data_ptr() == behind.data_ptr():
        ahead = value_at(problem, moved(k))
        ahead = None if ahead is None else ahead.clone()
        behind = value_at(problem, moved(-k))
    return None if ahead is None or behind is None else (ahead - behind, ahead)


def value_at(problem: Forward, point: Sequence[Tensor]) -> Tensor | None:
    """Value of f at a point that nobody else holds, as one vector in memory that may be f's own.

    None where it raises.
    """
    result = problem.evaluate_fresh(point)
    if isinstance(result, Raised):
        return None
    if len(result.value) == 1:
        return vector_of(result.value[0], problem.outputs.blocks[0])
    return problem.outputs.flatten(result.value)


def _negligible(outputs: Layout, size: Tensor, total: float, least: float, damping: float) -> Tensor | float:
    """For each row a share of the mean of its output's rows; of all rows where its output does not move.

    No less than `least`.
    """
    mean = total / size.numel()
    if len(outputs.blocks) == 1:
        return max(mean / damping, least)
    parts = [part for part in outputs.cut(size) if part.numel()]
    means = torch.cat([part.new_tensor(part.mean().item() or mean).expand(part.numel()) for part in parts])
    return (means / damping).clamp_(min=least)
