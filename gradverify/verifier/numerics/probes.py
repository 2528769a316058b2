"""Random probes from one fixed pool: tangents for the inputs, cotangents for the outputs.

A pool, because drawing anew costs more than the rest of a small problem's proof, and because the same probes
come back with the same key.

Random grad_outputs, and other vectors to weigh entries by.

Lines through a point of forward, and its derivative along them by finite differences.

    stencil          derivative along T                              truncation for a step h
    two values        2 J T = F₁ - F₋₁                               h² / 6
    four, far apart 120 J T = 64 (F₁ - F₋₁) - (F₄ - F₋₄)             h⁴ · 2/15
    outer values      8 J T = F₄ - F₋₄                               where rounding is too much for two

with F_k = f(x + k T) and T = fl(x + h v) - x. (Fornberg, *Generation of finite difference formulas*, 1988.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import accumulate
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.calling import Gradients, Tensors
from gradverify.verifier.numerics.problem import Layout, tensor_of, vector_of

POOL = 2**17
"""Length of the fixed pool of probe values; larger vectors repeat it."""

STRIDE = 7919
"""Entries of the pool between the probes of one key and those of the next."""

KEPT = 4096
"""Probes up to this many entries are kept by shape, since the same shapes come again."""

TANGENT_GRID = 2.0**-12
"""Tangents are short binary numbers, so that steps along them are exact and polynomials stay exact."""

SAMPLE = 255
"""Entries that are asked for the typical size of an input: a tenth more or less does not matter, and the
median of 10^5 takes as long as all else that is done with them."""

WIDE = 16.0
"""Up to this ratio of two entries' sizes each moves by its own; beyond it, small ones move by more, since an
error by an entry near zero is seen by what that moves. At 4 samples of `ctc_loss` and `svd_lowrank` of
PyTorch's operator database do not close any more, at 8 one."""


def sizes_of(x: Tensor) -> Tensor:
    """By how much each entry of one input is to move: its own size, within `WIDE` of the typical one.

    Fresh, of the shape of `x`; zero for what is not finite.
    """
    size = x.abs()
    if not size.numel():
        return size
    low, high = [bound.item() for bound in size.aminmax()]
    if low > 0 and high <= WIDE * low:
        return size
    few = size.take(_sampled(size.numel())) if size.numel() > SAMPLE else size
    if low > 0 and high < math.inf:
        typical = few.median().item()
        return size.clamp_(typical / WIDE, typical)
    moving = _moving(few) if bool(_moving(few).numel()) else _moving(size)
    typical = moving.median().item() if moving.numel() else 1.0
    return torch.where(size.isfinite(), size.clamp(typical / WIDE, typical), 0.0)


def _moving(size: Tensor) -> Tensor:
    return size[(size > 0) & (size < math.inf)]


@lru_cache(maxsize=256)
def _sampled(count: int) -> Tensor:
    """Random places: at regular ones there may be a column that is all zeros."""
    return torch.randint(count, (SAMPLE,), generator=torch.Generator().manual_seed(count))


def short_values(shape: tuple[int, ...], start: int) -> Tensor:
    """Signed short binary numbers between 0.5 and 1.5 in size, from a place of the pool on.

    A view of the pool: not to be written to.
    """
    count = math.prod(shape)
    return (_kept_short_values if count <= KEPT else _short_values)(shape, start)


def _short_values(shape: tuple[int, ...], start: int) -> Tensor:
    return _of_pool(_short_pool(), math.prod(shape), start).view(shape)


_kept_short_values = lru_cache(maxsize=256)(_short_values)
"""Views of the pool: finding them again takes less than making them."""


def signed_values(count: int, key: int) -> Tensor:
    """`count` signed values with magnitudes in [0.5, 1.5) from the pool; full mantissas."""
    return _of_pool(_pool(), count, key * STRIDE)


def _of_pool(pool: Tensor, count: int, start: int) -> Tensor:
    start %= POOL
    if start + count <= POOL:
        return pool[start : start + count]
    return pool.roll(-start).repeat(count // POOL + 1)[:count]


@cache
def _pool() -> Tensor:
    return random_signs(POOL, 20_263)


@cache
def _short_pool() -> Tensor:
    return (_pool() / TANGENT_GRID).round() * TANGENT_GRID


class Cotangent(NamedTuple):
    """One random grad_output before it is weighed."""

    values: Tensor
    """A vector of what it is defined for: not to be written to."""
    only: int | None
    """The one output that it is defined for, by number; None for all of them."""
    rows: slice
    """Where that lies among all rows."""
    scale: float
    """Its size, times the root of the number of rows that it weighs."""

    def weighed(self, size: Tensor) -> Tensor:
        """The same with every row divided by what it counts (M entries)."""
        return self.values / (size if self.only is None else size[self.rows])

    def shaped(self, values: Tensor, outputs: Layout) -> Sequence[Tensor | None]:
        """A grad_output for every output, None for those that stay undefined."""
        if self.only is None:
            return outputs.shaped(values)
        block = outputs.blocks[self.only]
        own = values.view(block.shape) if block.is_plain else tensor_of(values, block)
        return [own if number == self.only else None for number in range(len(outputs.blocks))]


def cotangents_of(outputs: Layout, magnitudes: tuple[float, ...], unit: float) -> Sequence[Cotangent]:
    """Cotangents whose weighed rows are of such magnitudes where J v is of ordinary size.

    They will be divided by differences, which are `unit` times J v. One for all outputs at each magnitude;
    of several outputs, one for all, and one for each alone.
    """
    lengths, sizes = tuple(outputs.lengths), tuple([m * unit for m in magnitudes])
    return (_kept_cotangents if outputs.size <= KEPT else _cotangents)(lengths, sizes)


def _cotangents(lengths: tuple[int, ...], sizes: tuple[float, ...]) -> Sequence[Cotangent]:
    count = sum(lengths)
    if len(lengths) == 1:
        return [_cotangent(0, slice(0, count), size, None) for size in sizes]
    stops = list(accumulate(lengths))
    rows = [slice(stop - length, stop) for stop, length in zip(stops, lengths, strict=True)]
    numbered = [k for k, length in enumerate(lengths) if length]
    each = [_cotangent(7 * n, rows[k], sizes[-1], k) for n, k in enumerate(numbered, 1)]
    return [_cotangent(0, slice(0, count), sizes[0], None), *each]


_kept_cotangents = lru_cache(maxsize=256)(_cotangents)
"""Multiplied once for all: a small problem's proof is that much cheaper."""


def _cotangent(key: int, rows: slice, size: float, only: int | None) -> Cotangent:
    count = rows.stop - rows.start
    return Cotangent(signed_values(count, key + 1) * size, only, rows, abs(size) * math.sqrt(count))


def random_signs(count: int, seed: int) -> Tensor:
    """Signed values with magnitudes in [0.5, 1.5): never near zero, never all alike."""
    generator = torch.Generator().manual_seed(seed % 2**63)
    magnitude = torch.rand(count, generator=generator, dtype=torch.float64) + 0.5
    sign = torch.randint(0, 2, (count,), generator=generator) * 2 - 1
    return magnitude * sign


DAMPING = 1024.0
"""A row counts by its error relative to |J T|_i, but to no less than its output's mean of that over this."""

NOISY = 2.0**-7
"""Nor to less than this share of |f_i|: so the rounding of f, a few times 2^-52 |f_i|, over the step stays
below the residual that is allowed at each step."""

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
FOUR_APART = Stencil(64, -1, 4)
OUTER_VALUES = Stencil(0, 1, 4)


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

    def stretched(self, length: float) -> Line:
        """The same with steps of another length, exact ones."""
        ratio = length / self.length
        steps = [
            None if s is None else torch.add(x, s, alpha=ratio).sub_(x)
            for x, s in zip(self.here, self.steps, strict=True)
        ]
        return self._replace(steps=steps, length=length)

    def noticed(self, atol: float) -> float:
        """What an error of atol in one entry makes in the derivative along an ordinary tangent."""
        steps = torch.cat([step.reshape(-1) for step in self.steps if step is not None])
        size: float = torch.linalg.vector_norm(steps).item()
        return atol * size / math.sqrt(steps.numel()) / self.length


def line_of(primals: Sequence[Tensor], inputs: Layout, length: float) -> Line:
    """Steps that are exact: T = fl(x + h v) - x."""
    here: list[Tensor] = []
    steps: list[Tensor | None] = []
    for primal, block in zip(primals, inputs.blocks, strict=True):
        x = primal if block.is_plain else vector_of(primal, block)
        size = sizes_of(x)
        size.mul_(short_values(x.shape, block.start))
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


def weigh(outputs: Layout, change: Tensor, value: Tensor, unit: float) -> Weighed | None:
    """By what each row of a change counts beside the size of f; None where a row is not finite.

    `value` is f at one of the points, M entries. `unit` is what makes a derivative along v a change.
    """
    magnitude = change.abs()
    total = magnitude.sum().item()
    if not math.isfinite(total):
        return None
    negligible = _negligible(outputs, magnitude, total)
    value = value.abs()
    largest = NOISY * unit * value.max().item()
    size = magnitude.add_(value, alpha=NOISY * unit).add_(negligible + TINIEST)
    return Weighed(change, size, negligible, total == 0, largest, unit)


def _negligible(outputs: Layout, size: Tensor, total: float) -> Tensor | float:
    """For each row a share of the mean of its output's rows; of all rows where its output does not move."""
    mean = total / size.numel()
    if len(outputs.blocks) == 1:
        return mean / DAMPING
    parts = [part for part in outputs.cut(size) if part.numel()]
    means = torch.cat([part.new_tensor(part.mean().item() or mean).expand(part.numel()) for part in parts])
    return means / DAMPING


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
