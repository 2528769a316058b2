"""Jacobians too large to build: rows from one direction, columns by bisection, then what is wrong measured.

One random direction gives all M rows of J v and A v at once. A row that is wrong there beyond its own
measured error is followed into the inputs by bisecting the direction: 6 forwards for each half. What is found
is measured as a small Jacobian of its own, entry by entry, as any other, so nothing is reported that was not
confirmed directly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.column_compression import Grouped, Restricted, along
from gradverify.verifier.numerics.compare import Comparison, compare
from gradverify.verifier.numerics.jacobian import (
    KnownColumns,
    analytical_jacobian,
    analytical_rows,
    numerical_jacobian,
)
from gradverify.verifier.numerics.probes import signed_values, tangent_of
from gradverify.verifier.numerics.problem import CallProblem, Layout, Problem, VjpProblem
from gradverify.verifier.numerics.sampling import Sampler
from gradverify.verifier.numerics.tolerance import Tolerance
from gradverify.verifier.numerics.verdict import Judged, NotJudged, centre_of, judge, judge_claim

LARGEST_JACOBIAN = 4_000_000
"""Entries of a Jacobian that is still built in full: four float64 matrices of it take 128 MB."""

MOST_ROWS = 20_000
"""Rows that are pulled back one by one where backward cannot be differentiated."""

ROWS_FOLLOWED = 6
"""Wrong rows that are followed into the inputs."""

COLUMNS_FOUND = 12
"""Wrong columns after which the search in one input ends."""

COLUMNS_BESIDE = 6
"""Other columns of each input that are measured too, to show what is right."""

TRANSPOSED = 1e-11
"""Relative deviation at which A v, taken from the double backward, is not the transpose of backward."""


@dataclass(frozen=True)
class Certificate:
    """Backward is the derivative at this point, as far as one random direction tells."""

    visible: float | None
    """The relative error of a typical entry that shows; None where all derivatives are zero."""


def judge_any_size(
    problem: Problem,
    tolerance: Tolerance,
    *,
    noise: Tensor | None = None,
    known: KnownColumns | None = None,
    largest: int | None = None,
) -> Judged | Certificate | NotJudged | Raised:
    """`judge` where the Jacobian can be built; else what a direction tells, measured where it is wrong.

    `largest` is how many entries of a Jacobian are worth building, None for `LARGEST_JACOBIAN`.
    """
    inputs = Layout.of(problem.primals)
    if inputs.size * problem.outputs.size <= (LARGEST_JACOBIAN if largest is None else largest):
        return judge(problem, tolerance, noise=noise, known=known)
    centre = centre_of(problem)
    if isinstance(centre, NotJudged):
        return centre
    return _judge_along(problem, inputs, centre, tolerance, noise)


def _judge_along(
    problem: Problem, inputs: Layout, centre: Tensor, tolerance: Tolerance, noise: Tensor | None
) -> Judged | Certificate | NotJudged | Raised:
    x = inputs.flatten(problem.primals)
    line = along(problem, inputs, x, tangent_of(x, inputs, 1))
    claimed = _claimed(line)
    if not isinstance(claimed, Returned):
        return claimed
    judged = judge_claim(Sampler(line, centre, noise), claimed.value, tolerance)
    if isinstance(judged, NotJudged):
        return judged
    # One wrong entry is diluted in its row, so here every confirmed difference counts, whatever rtol.
    conflicts = judged.comparison.conflicts[:, 0]
    if not conflicts.any():
        return _without_conflict(judged.comparison, problem.outputs.size, inputs.size)
    rows = _worst_rows(judged.comparison, conflicts)
    columns = _columns(line, centre, rows)
    return columns if isinstance(columns, Raised) else _located(line, columns, rows, tolerance)


def _located(
    line: Grouped, columns: tuple[int, ...], rows: tuple[int, ...], tolerance: Tolerance
) -> Judged | NotJudged | Raised:
    """The submatrix of wrong rows and the columns in which they are wrong, measured entry by entry."""
    part = Restricted(line.problem, line.inputs, line.x, columns, rows)
    small = judge(part, tolerance)
    if not isinstance(small, Judged):
        return small
    if not small.comparison.conflicts.any():
        return NotJudged("a difference was found along a random direction, but in no single entry")
    return replace(small, inputs=part.chosen_inputs)


def _claimed(line: Grouped) -> Returned[Tensor] | NotJudged | Raised:
    """A v, M × 1: by the double backward, or row by row where that is refused or is not the transpose."""
    if isinstance(line.problem, CallProblem):
        doubled = _by_double_backward(line, line.problem)
        if doubled is not None:
            return Returned(doubled[:, None])
    if line.outputs.size > MOST_ROWS:
        return NotJudged(
            f"its Jacobian has {line.outputs.size} rows, too many to look at one by one, and backward cannot "
            "be differentiated: give smaller sizes"
        )
    return analytical_jacobian(line)


def _by_double_backward(line: Grouped, problem: CallProblem) -> Tensor | None:
    """A v = d/du <Aᵀu, v>; None where the dot test u·(A v) = (Aᵀu)·v fails at another u.

    A detached backward gives zeros here in silence: the test is what tells.
    """
    outputs, inputs = line.outputs, line.inputs
    u, other = (signed_values(outputs.size, key) for key in (2, 3))
    second = VjpProblem(problem, outputs.unflatten(u))
    result = second.pull_back(second.primals, inputs.unflatten(line.tangent))
    check = problem.pull_back(problem.primals, outputs.unflatten(other))
    if isinstance(result, Raised) or isinstance(check, Raised):
        return None
    product = outputs.flatten(result.value[len(inputs.blocks) :])
    gradient = inputs.flatten(check.value)
    left, right = other * product, gradient * line.tangent
    allowed = TRANSPOSED * (left.abs().sum() + right.abs().sum())
    return product if bool((left.sum() - right.sum()).abs() <= allowed) else None


def _without_conflict(comparison: Comparison, rows: int, columns: int) -> Certificate | NotJudged:
    """Every row agrees along the direction; whether that covers them all."""
    covered = comparison.covered & ~comparison.kinks
    if covered.all():
        visible, size = comparison.smallest_visible, float(columns) ** 0.5
        return Certificate(None if visible is None else visible * size)
    share = 1 - covered.double().mean().item()
    return NotJudged(
        f"{share:.2g} of the {rows} rows of its Jacobian could not be judged along a random direction "
        "(noise, kinks or jumps), and it is too large to look at each entry: give smaller sizes"
    )


def _worst_rows(comparison: Comparison, wrong: Tensor) -> tuple[int, ...]:
    difference = comparison.difference[:, 0].nan_to_num(torch.inf, torch.inf)
    size = comparison.numerical[:, 0].abs() + comparison.bound[:, 0].nan_to_num(torch.inf)
    score = torch.where(wrong, difference / size.clamp_min(torch.finfo(torch.float64).tiny), -1.0)
    best = score.topk(min(ROWS_FOLLOWED, int(wrong.sum()))).indices
    return tuple(sorted(int(row) for row in best))


def _columns(line: Grouped, centre: Tensor, rows: tuple[int, ...]) -> tuple[int, ...] | Raised:
    """Columns in which some of the rows are wrong, and a few others of each input."""
    gradient = analytical_rows(line.problem, rows, line.problem.primals)
    if isinstance(gradient, Raised):
        return gradient
    found: set[int] = set()
    for own in line.inputs.slices:
        found.update(_bisect(line, centre, rows, gradient.value, own))
        found.update(range(own.start, own.stop, max(1, (own.stop - own.start) // COLUMNS_BESIDE)))
    return tuple(sorted(found))


def _bisect(
    line: Grouped, centre: Tensor, rows: tuple[int, ...], gradient: Tensor, whole: slice
) -> list[int]:
    """Columns of an interval that some row has wrong, the first ones only where there are many."""
    found: list[int] = []
    intervals = [(whole.start, whole.stop)]
    while intervals and len(found) < COLUMNS_FOUND:
        start, stop = intervals.pop()
        tangent = torch.zeros_like(line.tangent)
        tangent[start:stop] = line.tangent[start:stop]
        if not _conflict(replace(line, tangent=tangent), centre, rows, (gradient @ tangent)[:, None]):
            continue
        if stop - start == 1:
            found.append(start)
        else:
            middle = (start + stop) // 2
            intervals += [(middle, stop), (start, middle)]
    return found


def _conflict(part: Grouped, centre: Tensor, rows: tuple[int, ...], claimed: Tensor) -> bool:
    """Whether one of some rows is wrong along a direction."""
    restricted = Restricted(part, Layout.of(part.primals), torch.ones(1, dtype=torch.float64), (0,), rows)
    measured = numerical_jacobian(Sampler(restricted, centre[list(rows)]), suspect=claimed)
    comparison = compare(claimed, measured, Layout.of(part.primals), restricted.outputs, Tolerance(0.0))
    return bool(comparison.conflicts.any())
