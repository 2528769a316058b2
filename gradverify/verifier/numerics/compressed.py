"""Columns of a Jacobian that are measured together: those that backward says meet in no output.

An elementwise function moves every output by its own input alone, so one direction shows all of its Jacobian.
Columns are put into groups no two members of which have an entry in the same row of the Jacobian that
backward claims; each group is moved as one direction, by weights that are drawn at random, and its slope is
held against what is claimed of it. A backward that misses an entry, or has it in another place, shows as a
slope that no claim explains: then nothing is concluded, and every column is measured alone.

(Curtis, Powell & Reid, *On the estimation of sparse Jacobian matrices*, 1974: there the pattern is given,
here it is a claim that the numbers must bear out.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.verifier.numerics.compare import Comparison, compare
from gradverify.verifier.numerics.difference import ROUND_OFF_GAIN
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.jacobian import NumericalJacobian, numerical_jacobian
from gradverify.verifier.numerics.probes import tangent_of
from gradverify.verifier.numerics.problem import Problem
from gradverify.verifier.numerics.refine import LARGE_STEP
from gradverify.verifier.numerics.sampling import scales_of
from gradverify.verifier.numerics.submaps import Grouped
from gradverify.verifier.numerics.tolerance import Tolerance

FEWEST_COLUMNS = 8
"""Columns below which nothing is saved."""

WORTHWHILE = 0.5
"""Groups for each column above which every column is measured alone: if a group then disagrees, that much
was spent for nothing."""

MEETING = 8
"""Columns that are put together although they meet: a mistake in one of them shows in the sum of so many."""

GOOD = 10.0
"""Errors within so many times what noise alone makes at the largest step are as small as they get."""

PROBES = 3
"""Key of the random weights: another one than the certificate's."""


@dataclass(frozen=True)
class Slopes:
    """What groups of columns measured, held against what is claimed of them."""

    together: Grouped
    comparison: Comparison
    """M × (number of groups)."""
    measured: NumericalJacobian
    """M × (number of groups)."""
    pattern: Tensor
    """Where the claim is not zero: bool, M × N."""
    members_meet: bool
    """Columns with an entry in the same row are in one group: a mistake shows in a sum."""

    def hides(self, rtol: float) -> bool:
        """Whether a mistake of rtol might show in single columns, and not here.

        Where the noise of f limits even the largest step, single columns show no more.
        """
        noise = GOOD * ROUND_OFF_GAIN * self.measured.noise / LARGE_STEP
        vague = (self.comparison.visible > rtol) & (self.measured.error > noise[:, None])
        return self.members_meet and bool(vague.any())

    def entries(self) -> NumericalJacobian:
        """The slopes as entries, M × N."""
        return entries_of_groups(self.together, self.measured, self.pattern)


def entries_of_groups(together: Grouped, measured: NumericalJacobian, pattern: Tensor) -> NumericalJacobian:
    """The slopes of groups as entries, M × N: what a group moved was moved by its member that has the entry.

    A member that is said to have none (`pattern`, bool, M × N) has a derivative of zero, as well as the
    group's slope is known.
    """
    tangent, group = together.tangent, together.group
    nothing = torch.zeros((), dtype=torch.float64)
    return NumericalJacobian(
        value=torch.where(pattern, measured.value[:, group] / tangent, nothing),
        error=measured.error[:, group] / tangent.abs(),
        flat=measured.flat[:, group],
        kink=torch.where(pattern, measured.kink[:, group] / tangent.abs(), nothing),
        step=measured.step[:, group] * tangent.abs(),
        centre=measured.centre,
        noise=measured.noise,
        scale=scales_of(together.x, together.inputs)[: tangent.numel()],
    )


def measured_together(
    problem: Problem,
    centre: Tensor,
    claimed: Tensor,
    rtol: float,
    *,
    noise: Tensor | None = None,
    meeting: bool = False,
) -> Slopes | None:
    """The slopes of groups of columns; None where no groups can be had.

    `claimed` holds the first columns of the Jacobian that backward claims, M × N. With `meeting`, columns
    that meet in an output are put together too where there are no others: then entries cannot be told apart.
    Cost: 6 forwards for a group, 18 or 24 more for one that does not resolve.
    """
    inputs = Layout.of(problem.primals)
    x = inputs.flatten(problem.primals)
    tangent = tangent_of(x, inputs, PROBES)[: claimed.shape[1]]
    if not bool(tangent.all()):
        return None
    # Where f is not finite, nothing is known whatever is claimed.
    claimed = torch.where(centre.isfinite()[:, None], claimed, 0.0)
    pattern = claimed != 0
    group = columns_apart(pattern)
    members_meet = group is None
    if group is None and meeting:
        group = columns_of_each_input(inputs, claimed.shape[1])
    if group is None:
        return None
    together = Grouped(problem, inputs, x, tangent, group, int(group.max()) + 1)
    slopes = together.compressed(claimed)
    measured = numerical_jacobian(together, centre, suspect=slopes, noise=noise)
    comparison = compare(slopes, measured, Layout.of(together.primals), problem.outputs, Tolerance(rtol))
    return Slopes(together, comparison, measured, pattern, members_meet)


def columns_apart(pattern: Tensor) -> Tensor | None:
    """The number of the group of each column (N entries): members of one have no row in common.

    `pattern` is bool, M × N. Greedy, in the order of the columns. None where there would be too many groups
    for that to be worth while.
    """
    count = pattern.shape[1]
    most = int(WORTHWHILE * count)
    if count < FEWEST_COLUMNS or not pattern.shape[0] or int(pattern.sum(dim=1).max()) > most:
        return None
    taken = torch.zeros(most, pattern.shape[0], dtype=torch.bool)
    group = torch.zeros(count, dtype=torch.long)
    used = 0
    for number, column in enumerate(pattern.mT.contiguous()):
        met = (taken[:used] & column).any(dim=1)
        first = int(met.to(torch.uint8).argmin()) if used else 0
        if used == 0 or bool(met[first]):
            first = used
            used += 1
        if used > most:
            return None
        taken[first] |= column
        group[number] = first
    return group


def columns_of_each_input(inputs: Layout, count: int) -> Tensor | None:
    """Groups of `MEETING` columns of one input each, neighbours apart; None where there are few columns."""
    if count < FEWEST_COLUMNS:
        return None
    parts, first = [], 0
    for length in inputs.lengths:
        groups = -(-length // MEETING)
        parts.append(first + torch.arange(length) % max(1, groups))
        first += groups
    return torch.cat(parts)[:count]
