"""Lines through a point of forward, and its derivative along them by finite differences.

    stencil          derivative along T                              truncation for a step h
    two values        2 J T = F₁ - F₋₁                               h² / 6
    four values      12 J T = 8 (F₁ - F₋₁) - (F₂ - F₋₂)              h⁴ / 30
    four, far apart 120 J T = 64 (F₁ - F₋₁) - (F₄ - F₋₄)             h⁴ · 2/15
    outer values      8 J T = F₄ - F₋₄                               where rounding is too much for two

with F_k = f(x + k T) and T = fl(x + h v) - x. (Fornberg, *Generation of finite difference formulas*, 1988.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.calling import Gradients, Tensors
from gradverify.verifier.numerics.flat import Layout, tensor_of, vector_of
from gradverify.verifier.numerics.probes import LESS_WIDE, STRIDE, WIDE, short_values, sizes_of

DAMPING = 1024.0
"""A row counts by its error relative to |J T|_i, but to no less than its output's mean of that over this."""

NOISY = 2.0**-7
"""Nor to less than this share of |f_i|: so the rounding of f, a few times 2^-52 |f_i|, over the step stays
below the residual that is allowed at each step."""

SMOOTH = 3e-6
"""Where the second-order and the fourth-order difference agree to this share, the latter is off by about its
square, a tenth of what the first attempt allows: what does not close then is no matter of the step."""

TINIEST = torch.finfo(torch.float64).tiny

BackEach = Callable[[Sequence[Sequence[Tensor | None]]], Returned[list[Gradients]] | Raised]
"""The gradients for several sets of grad_outputs."""


class Asked(Protocol):
    """A map and its backward at one point: all that is asked of a problem here."""

    @property
    def primals(self) -> Sequence[Tensor]:
        """The differentiable inputs, detached."""

    @property
    def outputs(self) -> Layout:
        """Shapes and dtypes of the m outputs."""

    @property
    def evaluate_fresh(self) -> Callable[[Sequence[Tensor]], Returned[Tensors] | Raised]:
        """The m outputs at values of the inputs that nothing else holds."""

    @property
    def back_each(self) -> BackEach:
        """The gradients for several sets of grad_outputs."""


class Stencil(NamedTuple):
    """Weights of F₁ - F₋₁ and of F_k - F₋k."""

    near: float
    outer: float
    distance: float
    """k."""

    @property
    def factor(self) -> float:
        """The weighed sum is this times the derivative along T."""
        return 2 * (self.near + self.outer * self.distance)


TWO_VALUES = Stencil(1, 0, 0)
FOUR_VALUES = Stencil(8, -1, 2)
FOUR_APART = Stencil(64, -1, 4)
OUTER_VALUES = Stencil(0, 1, 4)


class Tangent(NamedTuple):
    """How far each entry moves."""

    key: int = 0
    """Chooses the random numbers."""
    binary: bool = True
    """All are short binary numbers, so that polynomials stay exact: for who asks for more than tolerances."""


class Line(NamedTuple):
    """The points x + k T. Each input, and how far it goes; None for one that stays."""

    inputs: Layout
    here: Sequence[Tensor]
    """Plain float64 tensors."""
    steps: Sequence[Tensor | None]
    length: float
    """h, in units of each entry's size."""

    def point(self, k: float) -> list[Tensor]:
        """Fresh tensors at x + k · T."""
        inputs, here, steps, _ = self
        moved = [
            x.clone() if step is None else torch.add(x, step, alpha=k)
            for x, step in zip(here, steps, strict=True)
        ]
        if inputs.is_plain:
            return moved
        return [tensor_of(x.reshape(-1), b) for x, b in zip(moved, inputs.blocks, strict=True)]

    def only(self, numbers: Sequence[int]) -> Line:
        """Some inputs moving, by number, and the others not."""
        return self._replace(steps=[s if k in numbers else None for k, s in enumerate(self.steps)])

    def held(self) -> Line | None:
        """The same without steps of entries that are not finite, which no step moves; None where all are."""
        finite = [x.isfinite() for x in self.here]
        if all(bool(f.all()) for f in finite):
            return None
        steps = [
            None if s is None else torch.where(f, s, 0.0) for s, f in zip(self.steps, finite, strict=True)
        ]
        return self._replace(steps=steps)

    def stretched(self, length: float) -> Line:
        """The same with steps of another length, exact ones."""
        ratio = length / self.length
        steps = [
            None if s is None else torch.add(x, s, alpha=ratio).sub_(x)
            for x, s in zip(self.here, self.steps, strict=True)
        ]
        held = self._replace(steps=steps, length=length)
        return held.held() or held

    def noticed(self, atol: float) -> float:
        """What an error of atol in one entry makes in the derivative along an ordinary tangent."""
        steps = torch.cat([step.reshape(-1) for step in self.steps if step is not None])
        size: float = torch.linalg.vector_norm(steps).item()
        return atol * size / math.sqrt(steps.numel()) / self.length


def line_of(primals: Sequence[Tensor], inputs: Layout, length: float, tangent: Tangent) -> Line:
    """Steps that are exact: T = fl(x + h v) - x."""
    here: list[Tensor] = []
    steps: list[Tensor | None] = []
    for primal, block in zip(primals, inputs.blocks, strict=True):
        x = primal if block.is_plain else vector_of(primal, block)
        size = sizes_of(x, WIDE if tangent.binary else LESS_WIDE)
        if tangent.binary:
            size.log2_().floor_().exp2_()
        size.mul_(short_values(x.shape, block.start + tangent.key * STRIDE))
        here.append(x)
        steps.append(torch.add(x, size, alpha=length, out=size).sub_(x))
    return Line(inputs, here, steps, length)


class Differences:
    """Differences of values of forward along a line, each taken once."""

    def __init__(self, forward: Asked, line: Line) -> None:
        self._forward = forward
        self._taken: dict[float, Tensor | None] = {}
        self.line = line
        self.beside: Tensor | None = None
        """F₁, M entries, once it was asked for; values further away are not kept."""

    def at(self, k: float) -> Tensor | None:
        """F_k - F₋k, M entries; None where forward raises."""
        if k not in self._taken:
            found = difference(self._forward, self.line.point, k)
            self._taken[k] = None if found is None else found[0]
            if k == 1 and found is not None:
                self.beside = found[1]
        return self._taken[k]

    def by(self, stencil: Stencil) -> Tensor | None:
        """`stencil.factor` times the derivative along T, M entries; None where forward raises."""
        near = self.at(1)
        outer = self.at(stencil.distance) if stencil.outer else None
        if near is None or (stencil.outer and outer is None):
            return None
        if outer is None:
            return near
        return torch.add(near * stencil.near, outer, alpha=stencil.outer)

    def is_smooth(self, weighed: Weighed, factor: float) -> bool:
        """Whether no other step would give another derivative than a stencil of this factor."""
        near = self.at(1)
        return near is not None and bool(
            ((weighed.change - near * (factor / 2)).abs() <= SMOOTH * weighed.size).all()
        )


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


def weigh(
    outputs: Layout, change: Tensor, value: Tensor, unit: float, damping: float = DAMPING
) -> Weighed | None:
    """By what each row of a change counts beside the size of f; None where a row is not finite.

    `value` is f at one of the points, M entries. `unit` is what makes a derivative along v a change.
    """
    magnitude = change.abs()
    total = magnitude.sum().item()
    if not math.isfinite(total):
        return None
    negligible = _negligible(outputs, magnitude, total, damping)
    value = value.abs()
    largest = NOISY * unit * value.max().item()
    size = magnitude.add_(value, alpha=NOISY * unit).add_(negligible + TINIEST)
    return Weighed(change, size, negligible, total == 0, largest, unit)


def _negligible(outputs: Layout, size: Tensor, total: float, damping: float) -> Tensor | float:
    """For each row a share of the mean of its output's rows; of all rows where its output does not move."""
    mean = total / size.numel()
    if len(outputs.blocks) == 1:
        return mean / damping
    parts = [part for part in outputs.cut(size) if part.numel()]
    means = torch.cat([part.new_tensor(part.mean().item() or mean).expand(part.numel()) for part in parts])
    return means / damping


def difference(
    problem: Asked, moved: Callable[[float], Sequence[Tensor]], k: float
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


def value_at(problem: Asked, point: Sequence[Tensor]) -> Tensor | None:
    """Value of f at a point that nothing else holds, as one vector in memory that may be f's own.

    None where it raises.
    """
    result = problem.evaluate_fresh(point)
    if isinstance(result, Raised):
        return None
    if len(result.value) == 1:
        return vector_of(result.value[0], problem.outputs.blocks[0])
    return problem.outputs.flatten(result.value)
