"""Jacobians too large to build: rows from one direction, columns by bisection, then what is wrong measured.

One random direction gives all M rows of J v and A v at once. A row that is wrong there beyond its own
measured error is followed into the inputs by bisecting the direction: 6 forwards for each half. What is found
is measured as a small Jacobian of its own, entry by entry, as any other, so nothing is reported that was not
confirmed directly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.analytical import analytical_row
from gradverify.verifier.numerics.compare import Comparison, compare
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.jacobian import KnownColumns, numerical_jacobian
from gradverify.verifier.numerics.own_rounding import without_own_rounding
from gradverify.verifier.numerics.probes import signed_values, tangent_of
from gradverify.verifier.numerics.problem import CallProblem, Problem, VjpProblem
from gradverify.verifier.numerics.proof import Certificate
from gradverify.verifier.numerics.round_off import backward_round_off
from gradverify.verifier.numerics.submaps import Grouped, Restricted, along
from gradverify.verifier.numerics.tolerance import Tolerance
from gradverify.verifier.numerics.verdict import Judged, NotJudged, centre_of, confirmed, judge

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

ROWS_AT_ONCE = 64
"""Rows pulled back through one graph before their gradients are dropped."""

TRANSPOSED = 1e-11
"""Relative deviation at which A v, taken from the double backward, is not the transpose of backward."""


def judge_any_size(
    problem: Problem,
    tolerance: Tolerance,
    *,
    noise: Tensor | None = None,
    known: KnownColumns | None = None,
    largest: int | None = None,
) -> Judged | Certificate | NotJudged | Raised:
    """`judge` where the Jacobian can be built; else what probes tell, measured where it is wrong.

    `largest` is how many entries of a Jacobian are worth building, None for `LARGEST_JACOBIAN`.
    """
    inputs = Layout.of(problem.primals)
    if inputs.size * problem.outputs.size <= (LARGEST_JACOBIAN if largest is None else largest):
        return judge(problem, tolerance, noise=noise, known=known)
    centre = centre_of(problem)
    if isinstance(centre, NotJudged):
        return centre
    x = inputs.flatten(problem.primals)
    line = along(problem, inputs, x, tangent_of(x, inputs, 1))
    claimed = _claimed(line)
    if not isinstance(claimed, Returned):
        return claimed
    comparison = _compared(line, centre, claimed.value, tolerance, noise)
    # One wrong entry is diluted in its row, so here every confirmed difference counts, whatever rtol.
    conflicts = _conflicts(comparison)[:, 0]
    if not conflicts.any():
        return _without_conflict(comparison, problem.outputs.size, inputs.size)
    return _located(line, centre, _worst_rows(comparison, conflicts), tolerance)


def _located(
    line: Grouped, centre: Tensor, rows: tuple[int, ...], tolerance: Tolerance
) -> Judged | NotJudged | Raised:
    """The submatrix of wrong rows and the columns in which they are wrong, measured entry by entry."""
    columns = _columns(line, centre, rows)
    if isinstance(columns, Raised):
        return columns
    part = Restricted(line.problem, line.inputs, line.x, columns, rows)
    small = judge(part, tolerance)
    if isinstance(small, Judged) and not _conflicts(small.comparison).any():
        return NotJudged("a difference along a random direction was found, but in no entry by itself")
    return small


def _compared(
    line: Grouped, centre: Tensor, claimed: Tensor, tolerance: Tolerance, noise: Tensor | None = None
) -> Comparison:
    """J v against A v, every conflict confirmed."""
    inputs = Layout.of(line.primals)
    measured = numerical_jacobian(line, centre, suspect=claimed, noise=noise)
    comparison = compare(claimed, measured, inputs, line.outputs, tolerance)
    conflicts = (comparison.wrong | comparison.imprecise)[:, 0]
    if not conflicts.any():
        return comparison
    # Rounding of backward is measured where it matters, a row at a time.
    worst = torch.zeros_like(conflicts)
    worst[list(_worst_rows(comparison, conflicts))] = True
    round_off = backward_round_off(line, worst, claimed)
    comparison = compare(claimed, measured, inputs, line.outputs, replace(tolerance, round_off=round_off))
    return without_own_rounding(line, inputs, measured, confirmed(line, measured, comparison))


def _claimed(line: Grouped) -> Returned[Tensor] | NotJudged | Raised:
    """A v, M × 1: by the double backward, or row by row where that is refused or is not the transpose."""
    if isinstance(line.problem, CallProblem):
        doubled = _by_double_backward(line, line.problem)
        if doubled is not None:
            return Returned(doubled[:, None])
    count = line.outputs.size
    if count > MOST_ROWS:
        return NotJudged(
            f"its Jacobian has {count} rows, too many to look at one by one, and backward cannot be "
            "differentiated: give smaller sizes"
        )
    rows = []
    for start in range(0, count, ROWS_AT_ONCE):
        units = _units(line.outputs, range(start, min(count, start + ROWS_AT_ONCE)))
        result = line.pull_back_each(line.primals, units)
        if isinstance(result, Raised):
            return result
        rows += [slope for gradients in result.value for slope in gradients if slope is not None]
    return Returned(torch.cat(rows)[:, None])


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


def _units(outputs: Layout, positions: range) -> Iterator[list[Tensor | None]]:
    for position in positions:
        flat = torch.zeros(outputs.size, dtype=torch.float64)
        flat[position] = 1.0
        own = outputs.block_of(position)
        yield [t if k == own else None for k, t in enumerate(outputs.unflatten(flat))]


def _without_conflict(comparison: Comparison, rows: int, columns: int) -> Certificate | NotJudged:
    """Every row agrees along the direction; whether that covers them all."""
    covered = comparison.covered & ~comparison.kinks
    if covered.all():
        size = float(columns) ** 0.5
        return Certificate(comparison.visible.max().item() * size)
    share = 1 - covered.double().mean().item()
    return NotJudged(
        f"{share:.2g} of the {rows} rows of its Jacobian could not be judged along a random direction "
        "(noise, kinks or jumps), and it is too large to look at each entry: give smaller sizes"
    )


def _conflicts(comparison: Comparison) -> Tensor:
    return comparison.wrong | comparison.imprecise | comparison.nonfinite


def _worst_rows(comparison: Comparison, wrong: Tensor) -> tuple[int, ...]:
    difference = (comparison.analytical - comparison.numerical)[:, 0].abs().nan_to_num(torch.inf, torch.inf)
    size = comparison.numerical[:, 0].abs() + comparison.bound[:, 0].nan_to_num(torch.inf)
    score = torch.where(wrong, difference / size.clamp_min(torch.finfo(torch.float64).tiny), -1.0)
    best = score.topk(min(ROWS_FOLLOWED, int(wrong.sum()))).indices
    return tuple(sorted(int(row) for row in best))


def _columns(line: Grouped, centre: Tensor, rows: tuple[int, ...]) -> tuple[int, ...] | Raised:
    """Columns in which some of the rows are wrong, and a few others of each input."""
    claims = []
    for row in rows:
        result = analytical_row(line.problem, line.inputs, row, line.problem.primals)
        if isinstance(result, Raised):
            return result
        claims.append(result.value)
    gradient = torch.stack(claims)
    found: set[int] = set()
    for block in line.inputs.blocks:
        if block.stop > block.start:
            found.update(_bisect(line, centre, rows, gradient, (block.start, block.stop)))
            step = max(1, (block.stop - block.start) // COLUMNS_BESIDE)
            found.update(range(block.start, block.stop, step))
    return tuple(sorted(found))


def _bisect(
    line: Grouped, centre: Tensor, rows: tuple[int, ...], gradient: Tensor, whole: tuple[int, int]
) -> list[int]:
    """Columns of an interval that some row has wrong, the first ones only where there are many."""
    found: list[int] = []
    open_intervals = [whole]
    while open_intervals and len(found) < COLUMNS_FOUND:
        start, stop = open_intervals.pop()
        if not _conflict(line, centre, rows, gradient, (start, stop)):
            continue
        if stop - start == 1:
            found.append(start)
        else:
            middle = (start + stop) // 2
            open_intervals += [(middle, stop), (start, middle)]
    return found


def _conflict(
    line: Grouped, centre: Tensor, rows: tuple[int, ...], gradient: Tensor, interval: tuple[int, int]
) -> bool:
    """Whether a row is wrong when only the inputs of an interval move."""
    mask = torch.zeros_like(line.tangent)
    mask[interval[0] : interval[1]] = 1.0
    part = replace(line, tangent=line.tangent * mask)
    claimed = (gradient @ part.tangent)[:, None]
    restricted = Restricted(part, Layout.of(part.primals), torch.ones(1, dtype=torch.float64), (0,), rows)
    measured = numerical_jacobian(restricted, centre[list(rows)], suspect=claimed)
    comparison = compare(claimed, measured, Layout.of(part.primals), restricted.outputs, Tolerance(0.0))
    return bool(_conflicts(comparison).any())
