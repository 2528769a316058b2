"""The Jacobian that forward has by few forwards: columns that meet in no output are measured together.

An elementwise function moves every output by its own input alone, so one direction shows all of its Jacobian.
Columns are put into groups no two members of which have an entry in the same row: by the pattern that
backward claims, and where that does not agree, by all that inputs reach. Each group moves as one direction,
by weights that are drawn at random. Where there is no such pattern, each column is measured alone, but once.
Then random directions are held against what was measured (`agreement`): they tell whether the pattern is
complete, and which differences are beyond doubt. Only columns that remain in doubt (kinks, noise, a
difference near the error) are measured at all steps.

(Curtis, Powell & Reid, *On the estimation of sparse Jacobian matrices*, 1974: there the pattern is given,
here it is a claim that the numbers must confirm.)

Smaller problems within a problem: inputs that move together, or some entries with everything else held.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cached_property

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.calling import Gradients, Tensors
from gradverify.verifier.numerics.compare import Comparison, compare
from gradverify.verifier.numerics.directional_derivative import agreement
from gradverify.verifier.numerics.jacobian import (
    FIRST_STEP,
    LARGE_STEP,
    NumericalJacobian,
    numerical_jacobian,
)
from gradverify.verifier.numerics.probes import tangent_of
from gradverify.verifier.numerics.problem import Block, Cotangents, Layout, Problem, Selection, whole
from gradverify.verifier.numerics.sampling import ROUND_OFF_GAIN, Sampler
from gradverify.verifier.numerics.tolerance import Tolerance


@dataclass(frozen=True)
class _Submap:
    """A map into the inputs of a problem, the problem, and a map from its outputs."""

    problem: Problem
    inputs: Layout
    x: Tensor
    """All inputs of the problem, N entries."""

    @cached_property
    def outputs(self) -> Layout:
        return self.problem.outputs

    def evaluate(self, primals: Sequence[Tensor]) -> Returned[Tensors] | Raised:
        return self.evaluate_fresh(primals)  # the problem gets tensors of its own

    def evaluate_fresh(self, primals: Sequence[Tensor]) -> Returned[Tensors] | Raised:
        result = self.problem.evaluate_fresh(self._whole(primals))
        return result if isinstance(result, Raised) else Returned(self._seen(result.value))

    def pull_back_each(
        self, primals: Sequence[Tensor], cotangents: Iterable[Cotangents], part: Selection = whole
    ) -> Returned[list[Gradients]] | Raised:
        given = (self._whole_cotangents(u) for u in cotangents)
        return self.problem.pull_back_each(self._whole(primals), given, lambda g: part(self._part(g)))

    def pull_back(self, primals: Sequence[Tensor], cotangents: Cotangents) -> Returned[Gradients] | Raised:
        result = self.problem.pull_back(self._whole(primals), self._whole_cotangents(cotangents))
        return result if isinstance(result, Raised) else Returned(self._part(result.value))

    def _whole(self, primals: Sequence[Tensor]) -> Tensors:
        raise NotImplementedError

    def _part(self, gradients: Gradients) -> Gradients:
        raise NotImplementedError

    def _seen(self, values: Tensors) -> Tensors:
        return values

    def _whole_cotangents(self, cotangents: Cotangents) -> Cotangents:
        return cotangents


@dataclass(frozen=True)
class Grouped(_Submap):
    """The map t -> f(x + Σ (t_g - 1) v_g): as many numbers as groups, each of which moves its inputs.

    One group is the problem along a direction; its Jacobian is the column J v.
    """

    tangent: Tensor
    """v of the first inputs, each about as large as its input: so 1 is the scale of t. The others stay."""
    group: Tensor
    """The number of the group that each of these belongs to."""
    count: int
    """How many groups there are."""

    @cached_property
    def primals(self) -> Tensors:
        """The numbers t."""
        return (torch.ones(self.count, dtype=torch.float64),)

    def compressed(self, jacobian: Tensor) -> Tensor:
        """J V: M × (number of groups), of the columns of a Jacobian that move."""
        if self.count == 1:  # a dot product rounds less than a running sum
            return (jacobian @ self.tangent)[:, None]
        slopes = jacobian.new_zeros(jacobian.shape[0], self.count)
        return slopes.index_add_(1, self.group, jacobian * self.tangent)

    def _whole(self, primals: Sequence[Tensor]) -> Tensors:
        moved = self.x.clone()
        moved[: self.tangent.numel()] += (primals[0] - 1)[self.group] * self.tangent
        return self.inputs.unflatten(moved)

    def _part(self, gradients: Gradients) -> Gradients:
        row = self.inputs.flatten(gradients)[None, : self.tangent.numel()]
        return (self.compressed(row)[0],)


def along(problem: Problem, inputs: Layout, x: Tensor, tangent: Tensor) -> Grouped:
    """The map t -> f(x + (t - 1) v) of one number, at t = 1; `x` and v (`tangent`) have all N entries."""
    return Grouped(problem, inputs, x, tangent, torch.zeros(1, dtype=torch.long).expand(tangent.numel()), 1)


@dataclass(frozen=True)
class Restricted(_Submap):
    """Some inputs' entries to some outputs' entries, everything else held: a submatrix of the Jacobian."""

    columns: tuple[int, ...]
    """Positions among the N, ascending."""
    rows: tuple[int, ...]
    """Positions among the M, ascending."""

    @cached_property
    def chosen_inputs(self) -> Layout:
        """The chosen columns; a block's index is that in the whole tensor."""
        return chosen_of(self.inputs, self.columns)

    @cached_property
    def outputs(self) -> Layout:
        """The chosen rows; a block's index is that in the whole tensor."""
        return chosen_of(self.problem.outputs, self.rows)

    @cached_property
    def primals(self) -> Tensors:
        """The chosen entries of each input, as vectors."""
        return self.chosen_inputs.unflatten(self.x[list(self.columns)])

    def _whole(self, primals: Sequence[Tensor]) -> Tensors:
        moved = self.x.clone()
        moved[list(self.columns)] = self.chosen_inputs.flatten(primals)
        return self.inputs.unflatten(moved)

    def _part(self, gradients: Gradients) -> Gradients:
        return self.chosen_inputs.unflatten(self.inputs.flatten(gradients)[list(self.columns)])

    def _seen(self, values: Tensors) -> Tensors:
        return self.outputs.unflatten(self.problem.outputs.flatten(values)[list(self.rows)])

    def _whole_cotangents(self, cotangents: Cotangents) -> Cotangents:
        flat = torch.zeros(self.problem.outputs.size, dtype=torch.float64)
        flat[list(self.rows)] = self.outputs.flatten(cotangents)
        whole = self.problem.outputs.unflatten(flat)
        return [None if u is None else t for u, t in zip(cotangents, whole, strict=True)]


def chosen_of(layout: Layout, positions: Sequence[int]) -> Layout:
    """A layout of vectors that hold some coordinates of each tensor; complex numbers count twice."""
    blocks, start = [], 0
    for block in layout.blocks:
        own = [p for p in positions if block.start <= p < block.stop]
        dtype = block.dtype.to_real() if block.is_complex else block.dtype
        chosen = tuple(block.index(p) for p in own)
        blocks.append(Block((len(own),), dtype, torch.device("cpu"), start, start + len(own), chosen))
        start += len(own)
    return Layout(tuple(blocks))


FEWEST_IN_GROUPS = 8
"""Columns below which groups save nothing."""

FEWEST_BY_DIRECTIONS = 48
"""Columns below which each is measured alone where groups disagree: two directions and the slices cost about
as much as some."""

WORTHWHILE = 0.5
"""Groups for each column above which every column is measured alone."""

MOST_ALONE = 0.5
"""Share of the columns in doubt above which all are measured alone."""

MEETING = 8
"""Columns that are put together although they meet: a mistake in one of them shows in the sum of so many."""

GOOD = 10.0
"""Errors within so many times what noise alone makes at the largest step are as small as they get."""

PROBES = 3
"""Key of the random weights: another one than the certificate's."""


class Columns(Enum):
    """Which columns of a Jacobian may be measured together: never those with which something is wrong."""

    TOGETHER = auto()
    """Those that meet in no output, if all that could be known of each is known then."""
    IF_RIGHT = auto()
    """Any, if only mistakes matter and there are none; the columns of what is reported are groups then."""


@dataclass(frozen=True)
class Found:
    """What few forwards have shown."""

    measured: NumericalJacobian
    """M × N."""
    confirmed: Tensor | None = None
    """Differences from the claim that need no other confirmation: bool, M × N."""
    groups: tuple[Layout, Comparison] | None = None
    """Where only groups of columns were compared, and nothing is wrong: the columns of `measured`."""


@dataclass(frozen=True)
class _Groups:
    """What groups of columns have shown, held against what is claimed of them."""

    grouped: Grouped
    slopes: NumericalJacobian
    """M × (number of groups)."""
    comparison: Comparison

    def is_vague(self, rtol: float) -> bool:
        """Whether a mistake of rtol might show in single columns, and not in the sum of several.

        Where the noise of f limits even the largest step, single columns show no more.
        """
        noise = GOOD * ROUND_OFF_GAIN * self.slopes.noise / LARGE_STEP
        return bool(((self.comparison.visible > rtol) & (self.slopes.error > noise[:, None])).any())

    def entries(self, pattern: Tensor, scales: Tensor) -> NumericalJacobian:
        """The slopes as entries, M × N: what a group moved was moved by its member that has the entry.

        A member that has none (`pattern`, bool, M × N) has a derivative of zero, as well as the group's slope
        is known.
        """
        slopes, group, size = self.slopes, self.grouped.group, self.grouped.tangent.abs()
        return replace(
            slopes,
            value=torch.where(pattern, slopes.value[:, group] / self.grouped.tangent, 0.0),
            error=slopes.error[:, group] / size,
            flat=slopes.flat[:, group],
            kink=torch.where(pattern, slopes.kink[:, group] / size, 0.0),
            step=slopes.step[:, group] * size,
            scale=scales[: size.numel()],
        )


@dataclass(frozen=True)
class Compression:
    """The first N columns of a problem, and what backward claims of them."""

    sampler: Sampler
    claimed: Tensor
    """M × N."""
    tolerance: Tolerance

    @cached_property
    def _tangent(self) -> Tensor:
        return tangent_of(self.sampler.x, self.sampler.inputs, PROBES)[: self.claimed.shape[1]]

    @cached_property
    def _finite(self) -> Tensor:
        """Rows (bool, M × 1) of which anything is known."""
        return self.sampler.centre.isfinite()[:, None]

    def measured(self, columns: Columns) -> Found | None:
        """The Jacobian that forward has, M × N.

        None where there are few columns, where some cannot move, and where too many remain in doubt.
        """
        count = self.claimed.shape[1]
        if count < FEWEST_IN_GROUPS or not self.claimed.numel() or not bool(self._tangent.all()):
            return None
        pattern = (self.claimed != 0) & self._finite
        group = columns_apart(pattern)
        if columns is Columns.IF_RIGHT:
            return self._if_right(group)
        by_directions = count >= FEWEST_BY_DIRECTIONS and self.sampler.inputs.is_double
        if group is not None:
            groups = self._together(group, refined=not by_directions)
            entries = groups.entries(pattern, self.sampler.scales)
            if not bool(groups.comparison.conflicts.any()) and self._compared(entries).is_settled:
                return Found(entries)
        if not by_directions:
            return None
        if group is not None:
            reached = pattern | (reached_outputs(self.sampler, self._tangent) & self._finite)
            if not torch.equal(reached, pattern):
                group = columns_apart(reached)
                if group is not None:
                    entries = self._together(group, refined=False).entries(reached, self.sampler.scales)
        if group is None:
            entries = numerical_jacobian(self.sampler, only=range(count))
        return self._settled(entries, in_groups=group is not None)

    def _if_right(self, group: Tensor | None) -> Found | None:
        """What groups show, columns that meet too where there are no others, if nothing is wrong."""
        each = columns_of_each_input(self.sampler.inputs, self.claimed.shape[1])
        groups = self._together(each if group is None else group, refined=True)
        wrong = groups.comparison.wrong | groups.comparison.nonfinite
        if bool(wrong.any()) or (group is None and groups.is_vague(self.tolerance.rtol)):
            return None
        return Found(groups.slopes, groups=(Layout.of(groups.grouped.primals), groups.comparison))

    def _compared(self, measured: NumericalJacobian) -> Comparison:
        columns, outputs = self.sampler.inputs.first(self.claimed.shape[1]), self.sampler.problem.outputs
        return compare(self.claimed, measured, columns, outputs, self.tolerance)

    def _together(self, group: Tensor, *, refined: bool) -> _Groups:
        """Columns with the same number in `group` (N entries) measured together.

        `refined` groups are measured at all steps where they differ from the claim.
        """
        sampler, problem = self.sampler, self.sampler.problem
        grouped = Grouped(problem, sampler.inputs, sampler.x, self._tangent, group, int(group.max()) + 1)
        expected = grouped.compressed(torch.where(self._finite, self.claimed, 0.0))
        slopes = numerical_jacobian(sampler.of(grouped), suspect=expected if refined else None)
        columns, tolerance = Layout.of(grouped.primals), Tolerance(self.tolerance.rtol)
        return _Groups(grouped, slopes, compare(expected, slopes, columns, problem.outputs, tolerance))

    def _settled(self, measured: NumericalJacobian, *, in_groups: bool) -> Found | None:
        """What directions confirm, and each column of the rest by itself; None where that is too much.

        `in_groups` says how the columns were measured.
        """
        comparison = self._compared(measured)
        alone = (~self.claimed.isfinite() | (measured.kink > 0)).any(dim=0)
        if in_groups:
            alone |= ~comparison.covered.all(dim=0)
        if alone.sum() > MOST_ALONE * alone.numel():
            return None
        checked = agreement(self.sampler, measured, self.claimed, ~alone)
        if in_groups and not checked.rows.all():
            return None  # a row moves by more than its pattern tells
        conflicts = comparison.wrong | comparison.imprecise
        alone |= (conflicts & ~alone & ~checked.entries).any(dim=0)
        if alone.sum() > MOST_ALONE * alone.numel():
            return None
        columns = alone.nonzero().flatten().tolist()
        if columns:
            own = numerical_jacobian(self.sampler, suspect=self.claimed, only=columns)
            measured = measured.with_columns(columns, own)
        return Found(measured, conflicts & ~alone)


def columns_apart(pattern: Tensor) -> Tensor | None:
    """The number of the group of each column (N entries): members of one have no row in common.

    `pattern` is bool, M × N. Greedy, in the order of the columns. None where there would be too many groups
    for that to be worth while.
    """
    most = int(WORTHWHILE * pattern.shape[1])
    if not pattern.shape[0] or int(pattern.sum(dim=1).max()) > most:
        return None
    taken = torch.zeros(most, pattern.shape[0], dtype=torch.bool)
    group = torch.zeros(pattern.shape[1], dtype=torch.long)
    used = 0
    for number, column in enumerate(pattern.mT.contiguous()):
        apart = (~(taken[:used] & column).any(dim=1)).nonzero()
        first = int(apart[0]) if len(apart) else used
        used = max(used, first + 1)
        if used > most:
            return None
        taken[first] |= column
        group[number] = first
    return group


def columns_of_each_input(inputs: Layout, count: int) -> Tensor:
    """Groups of `MEETING` columns of one input each, neighbours apart (N entries)."""
    parts, first = [], 0
    for length in inputs.lengths:
        groups = -(-length // MEETING)
        parts.append(first + torch.arange(length) % max(1, groups))
        first += groups
    return torch.cat(parts)[:count]


def reached_outputs(sampler: Sampler, tangent: Tensor) -> Tensor:
    """Which of the M rows each column may reach: bool, M × (length of `tangent`).

    A coordinate reaches an output only if each of the slices in which it lies does, one in every dimension of
    its tensor: one forward for a slice, where a column takes six or more. That gives a superset of the
    pattern, exact for maps that work row by row, window by window or element by element. It is no proof: a
    coordinate whose move is lost in rounding reaches nothing here. `tangent` moves the first columns.
    """
    reached = torch.ones(sampler.centre.numel(), tangent.numel(), dtype=torch.bool)
    for block in sampler.inputs.first(tangent.numel()).blocks:
        positions = torch.arange(block.start, block.stop).view(tuple(block.shape))
        slices = [part for dim, size in enumerate(block.shape) if size > 1 for part in positions.unbind(dim)]
        for members in [part.reshape(-1) for part in slices or [positions] if part.numel()]:
            moved = sampler.x.clone()
            moved[members] += FIRST_STEP * tangent[members]
            reached[:, members] &= (sampler.value_at(moved) != sampler.centre)[:, None]
    return reached
