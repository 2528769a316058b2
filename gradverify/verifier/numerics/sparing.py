"""The Jacobian that forward has, by few forwards, where backward is wrong.

Columns that meet in no output are measured together (`compressed.py`): by the pattern that backward claims,
and where that does not agree, by all that inputs reach (`dependence.py`). Where there is no such pattern,
each column is measured alone, but once. Then random directions are held against what was measured
(`borne_out.py`): they tell whether the pattern is complete, and which differences are beyond doubt. Only
columns that remain in doubt (kinks, noise, a difference near the error) are measured at all steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradverify.verifier.numerics.borne_out import borne_out
from gradverify.verifier.numerics.compare import Comparison, compare
from gradverify.verifier.numerics.compressed import PROBES, columns_apart, entries_of_groups
from gradverify.verifier.numerics.confirm import confirm_columns
from gradverify.verifier.numerics.dependence import reached_outputs
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.jacobian import NumericalJacobian, numerical_jacobian
from gradverify.verifier.numerics.probes import tangent_of
from gradverify.verifier.numerics.problem import Problem
from gradverify.verifier.numerics.submaps import Grouped
from gradverify.verifier.numerics.tolerance import Tolerance

FEWEST = 48
"""Columns below which each is measured alone: two directions and the slices cost about as much as some."""

ROUNDS = 4
"""Times that columns in doubt are taken out before all are measured alone."""

MOST_ALONE = 0.5
"""Share of the columns in doubt above which all are measured alone."""


@dataclass(frozen=True)
class Found:
    """What few forwards have shown."""

    measured: NumericalJacobian
    """M × N."""
    confirmed: Tensor
    """Differences from the claim that need no other confirmation: bool, M × N."""


@dataclass(frozen=True)
class _Asked:
    problem: Problem
    inputs: Layout
    centre: Tensor
    claimed: Tensor
    """M × N: of the first N columns."""
    tolerance: Tolerance
    noise: Tensor | None

    def compared(self, measured: NumericalJacobian) -> Comparison:
        columns = self.inputs.first(self.claimed.shape[1])
        return compare(self.claimed, measured, columns, self.problem.outputs, self.tolerance)


def sparing_jacobian(
    problem: Problem,
    centre: Tensor,
    claimed: Tensor,
    tolerance: Tolerance,
    *,
    noise: Tensor | None = None,
) -> Found | None:
    """The measured Jacobian (M × N) for the first N columns, which backward claims to be `claimed`.

    None where there are few columns, where some cannot move, and where too many remain in doubt.
    """
    inputs = Layout.of(problem.primals)
    count = claimed.shape[1]
    x = inputs.flatten(problem.primals)
    tangent = tangent_of(x, inputs, PROBES)[:count]
    if count < FEWEST or not centre.numel() or not bool(tangent.all()) or not inputs.is_double:
        return None
    asked = _Asked(problem, inputs, centre, claimed, tolerance, noise)
    pattern = (claimed != 0) & centre.isfinite()[:, None]
    together = _together(asked, x, tangent, pattern)
    if together is not None and _agree(asked, together):
        return Found(together.entries, torch.zeros_like(pattern))
    if together is not None:
        reached = pattern | (reached_outputs(problem, centre, tangent) & centre.isfinite()[:, None])
        if not torch.equal(reached, pattern):
            pattern = reached
            together = _together(asked, x, tangent, pattern)
    if together is None:
        alone = numerical_jacobian(problem, centre, noise=noise, only=range(count))
        return _settled(asked, alone, None)
    return _settled(asked, together.entries, together)


@dataclass(frozen=True)
class _Together:
    """What groups of columns that meet in no output have shown."""

    groups: Grouped
    slopes: NumericalJacobian
    """M × (number of groups)."""
    expected: Tensor
    """The same by the claim."""
    pattern: Tensor
    """Where columns have entries: bool, M × N."""

    def compared(self, rtol: float) -> Comparison:
        """The slopes of the groups against the claim: where all agree, it is complete and right."""
        columns = Layout.of(self.groups.primals)
        return compare(self.expected, self.slopes, columns, self.groups.outputs, Tolerance(rtol))

    @property
    def entries(self) -> NumericalJacobian:
        """M × N: right where the pattern is complete."""
        return entries_of_groups(self.groups, self.slopes, self.pattern)

    def refined(self, asked: _Asked) -> _Together:
        """Measured again, with other steps where a group does not move as it should."""
        slopes = numerical_jacobian(self.groups, asked.centre, suspect=self.expected, noise=asked.noise)
        return replace(self, slopes=slopes)

    def repeated(self, asked: _Asked) -> Tensor:
        """Conflicts of entries (bool, M × N) that independent steps of the group repeat."""
        comparison = self.compared(asked.tolerance.rtol)
        conflicts = comparison.wrong | comparison.imprecise
        confirmed = confirm_columns(self.groups, self.slopes, self.expected, conflicts)
        return confirmed[:, self.groups.group] & self.pattern


def _together(asked: _Asked, x: Tensor, tangent: Tensor, pattern: Tensor) -> _Together | None:
    """Columns measured together by a pattern; None where it leaves no groups."""
    group = columns_apart(pattern)
    if group is None:
        return None
    groups = Grouped(asked.problem, asked.inputs, x, tangent, group, int(group.max()) + 1)
    slopes = numerical_jacobian(groups, asked.centre, noise=asked.noise)
    expected = groups.compressed(torch.where(asked.centre.isfinite()[:, None], asked.claimed, 0.0))
    return _Together(groups, slopes, expected, pattern)


def _agree(asked: _Asked, together: _Together) -> bool:
    """Whether nothing is wrong, and nothing in doubt: neither in the groups nor in the entries they give."""
    slopes = together.compared(asked.tolerance.rtol)
    if bool((slopes.wrong | slopes.imprecise | slopes.nonfinite).any()):
        return False
    entries = asked.compared(together.entries)
    conflicts = entries.wrong | entries.imprecise | entries.nonfinite | entries.kinks
    return not bool(conflicts.any()) and bool(entries.covered.all())


def _settled(asked: _Asked, measured: NumericalJacobian, together: _Together | None) -> Found | None:
    """What directions bear out, and each column of the rest by itself; None where that is too much.

    `together` is None where every column was measured alone.
    """
    claimed = asked.claimed
    alone = (~claimed.isfinite() | (measured.kink > 0)).any(dim=0)
    repeated = torch.zeros_like(claimed, dtype=torch.bool)
    again = together is not None
    if together is not None:
        alone |= ~asked.compared(measured).covered.all(dim=0)
    for _ in range(ROUNDS):
        if alone.sum() > MOST_ALONE * alone.numel():
            return None
        comparison = asked.compared(measured)
        conflicts = (comparison.wrong | comparison.imprecise) & ~alone
        checked = borne_out(asked.problem, measured, claimed, ~alone)
        open_ones = conflicts & ~checked.entries & ~(repeated & checked.rows[:, None])
        doubtful = open_ones.any(dim=0)
        if together is not None and not checked.rows.all():
            unexplained = together.pattern[~checked.rows].any(dim=0) & ~alone
            if not unexplained.any():
                return None  # a row moves by more than its pattern tells
            doubtful |= unexplained
        if not doubtful.any():
            return Found(_with_columns(asked, measured, alone), conflicts)
        if again and together is not None:
            again = False
            together = together.refined(asked)
            measured, repeated = together.entries, together.repeated(asked)
            alone |= (measured.kink > 0).any(dim=0)
        else:
            alone |= doubtful
    return None


def _with_columns(asked: _Asked, measured: NumericalJacobian, alone: Tensor) -> NumericalJacobian:
    """The same with some columns (bool, N) measured alone."""
    columns = alone.nonzero().flatten().tolist()
    if not columns:
        return measured
    own = numerical_jacobian(
        asked.problem, asked.centre, suspect=asked.claimed, noise=asked.noise, only=columns
    )
    parts = {}
    for name in ("value", "error", "flat", "kink", "step"):
        whole = getattr(measured, name).clone()
        whole[:, columns] = getattr(own, name)
        parts[name] = whole
    return replace(measured, noise=own.noise, **parts)
