"""From a problem to a judged Jacobian: measured, compared, and every conflict measured again.

This is the seam for the engine: whoever gives a `Judged` for a `Problem` can take the verdict over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradverify.model import RaisedError
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.column_compression import Columns, Compression, Found
from gradverify.verifier.numerics.compare import Comparison, compare, explained_by_other_pieces, remeasure
from gradverify.verifier.numerics.jacobian import (
    KnownColumns,
    NumericalJacobian,
    analytical_jacobian,
    numerical_jacobian,
)
from gradverify.verifier.numerics.one_sided import with_ends
from gradverify.verifier.numerics.probes import tangent_of
from gradverify.verifier.numerics.problem import OTHER_OUTPUTS, CallProblem, Layout, Problem
from gradverify.verifier.numerics.round_off import (
    FEW_ROWS,
    backward_round_off,
    may_be_round_off,
    without_own_rounding,
)
from gradverify.verifier.numerics.sampling import Sampler
from gradverify.verifier.numerics.tolerance import EPSILON, SAFETY, Tolerance
from gradverify.verifier.numerics.tracing import short_format

BESIDE = 2.0**-12
"""How far beside x forward is compared with itself, with a graph and without, in units of the inputs: as far
as the first steps go by which it is measured."""

BESIDE_KEY = 11
"""Probe key of that direction; any that no proof has used."""


@dataclass(frozen=True)
class Judged:
    """A compared Jacobian, with the measurement behind it."""

    comparison: Comparison
    measured: NumericalJacobian
    inputs: Layout
    """Its columns."""
    outputs: Layout
    """Its rows."""
    in_groups: bool = False
    """Its columns are groups of the inputs, and nothing is wrong."""


@dataclass(frozen=True)
class NotJudged:
    """Nothing can be said about this problem at this point."""

    reason: str
    unrepeatable: bool = False
    """Forward gives other values at the same inputs."""
    watched: bool = False
    """Forward gives something else where no gradient is asked for."""


def judge(
    problem: Problem,
    tolerance: Tolerance,
    *,
    noise: Tensor | None = None,
    known: KnownColumns | None = None,
    columns: Columns = Columns.TOGETHER,
) -> Judged | NotJudged | Raised:
    """Compare a problem's backward with the derivative of its forward.

    `Raised` means that backward raised. `noise` is a known noise of the outputs (M entries, absolute),
    `known` the last columns of the true Jacobian where they need no measuring.
    """
    centre = centre_of(problem)
    if isinstance(centre, NotJudged):
        return centre
    analytical = analytical_jacobian(problem)
    if isinstance(analytical, Raised):
        return analytical
    return judge_claim(Sampler(problem, centre, noise), analytical.value, tolerance, known, columns)


def judge_claim(
    sampler: Sampler,
    claimed: Tensor,
    tolerance: Tolerance,
    known: KnownColumns | None = None,
    columns: Columns = Columns.TOGETHER,
) -> Judged | NotJudged:
    """The same, with the Jacobian that backward claims (M × N) at hand."""
    problem, inputs = sampler.problem, sampler.inputs
    outputs = problem.outputs
    count = claimed.shape[1] - (0 if known is None else known.count)
    found = Compression(sampler, claimed[:, :count], tolerance).measured(columns)
    if found is not None and found.groups is not None:
        groups, comparison = found.groups
        return Judged(comparison, found.measured, groups, outputs, in_groups=True)
    if found is None:
        found = Found(numerical_jacobian(sampler, suspect=claimed, only=range(count)))
    measured = found.measured if known is None else known.joined(found.measured, sampler.own)
    comparison = compare(claimed, measured, inputs, outputs, tolerance)
    comparison, measured = with_ends(sampler, comparison, measured)
    suspicious = comparison.wrong | comparison.imprecise
    if suspicious.any():
        rows = _rows_that_may_round(comparison, suspicious, inputs)
        careful = replace(tolerance, round_off=backward_round_off(problem, rows, claimed))
        comparison = compare(claimed, measured, inputs, outputs, careful)
        comparison = remeasured(sampler, measured, comparison, count, found.confirmed, tolerance.rtol)
        comparison = without_own_rounding(sampler, measured, comparison)
        short = short_format(problem) if comparison.wrong.any() else ""
        if short:
            return NotJudged(f"forward computes in {short} inside, too coarsely for any finite difference")
    return Judged(comparison, measured, inputs, outputs)


def _rows_that_may_round(comparison: Comparison, suspicious: Tensor, inputs: Layout) -> Tensor:
    """Rows (bool, M) whose rounding in backward is worth measuring.

    A few always, since what is reported of them names it; of many, those alone that it could explain.
    """
    rows = suspicious.any(dim=1)
    if rows.sum() <= FEW_ROWS:
        return rows
    unexplained = (comparison.difference - comparison.bound) / SAFETY
    return (suspicious & may_be_round_off(unexplained, inputs, comparison.analytical)).any(dim=1)


def remeasured(
    sampler: Sampler,
    measured: NumericalJacobian,
    comparison: Comparison,
    count: int,
    already: Tensor | None,
    faint: float,
) -> Comparison:
    """Keep only conflicts that an independent measurement repeats; the others are not covered.

    A difference that does not repeat itself is a sample of the error there: where it is below `faint` of what
    is ordinary in its block, errors beyond it would have been seen. The first `count` columns were measured;
    `already` are those of their entries whose conflicts need no more of that. What is the derivative of one
    of several pieces that meet here lies on a kink, and is none.
    """
    conflicts = comparison.wrong | comparison.imprecise
    settled = torch.zeros_like(conflicts)
    if already is not None:
        settled[:, :count] = conflicts[:, :count] & already
    asked, claimed = conflicts & ~settled, comparison.analytical
    repeated = settled | remeasure(sampler, measured, claimed, asked, comparison.bound, count)
    dropped = conflicts & ~repeated
    seen = comparison.visible * (comparison.difference / comparison.bound)
    small = dropped & (seen > 0) & (seen <= faint)
    explained = explained_by_other_pieces(sampler, measured, comparison.analytical, conflicts & repeated)
    return replace(
        comparison,
        wrong=comparison.wrong & repeated & ~explained,
        imprecise=comparison.imprecise & repeated & ~explained,
        kinks=comparison.kinks | explained,
        covered=comparison.covered & ~(dropped & ~small),
        visible=torch.where(small, seen, comparison.visible),
        bound=torch.where(small, comparison.difference, comparison.bound),
    )


def centre_of(problem: Problem) -> Tensor | NotJudged:
    """f(x), if it can be evaluated, repeats itself, and does not depend on being watched."""
    values = []
    is_of_forward = isinstance(problem, CallProblem)
    what = "forward" if is_of_forward else "backward"
    for _ in range(2):
        result = problem.evaluate(problem.primals)
        if isinstance(result, Raised):
            where = "under torch.no_grad() " if is_of_forward else ""
            return NotJudged(f"{where}{what} {_raised(result.error)}", watched=is_of_forward)
        values.append(problem.outputs.flatten(result.value))
    if not torch.equal(values[0].nan_to_num(), values[1].nan_to_num()):
        return NotJudged(f"{what} gives other values at each call, random states replayed", unrepeatable=True)
    seen = _unlike_with_a_graph(problem, values[0]) if isinstance(problem, CallProblem) else None
    return values[0] if seen is None else seen


def _raised(error: RaisedError) -> str:
    return error.message if error.type == OTHER_OUTPUTS else f"raised {error.type}"


def _unlike_with_a_graph(problem: CallProblem, value: Tensor) -> NotJudged | None:
    """Whether forward gives other values where a graph is recorded, at x or a little beside it.

    What differs beside x alone has another derivative: as where inputs are made symmetric only if they
    require grad, at a symmetric one.
    """
    graph = problem.graph(problem.primals)
    if isinstance(graph, Raised):
        return NotJudged(f"at its second call forward {_raised(graph.error)}")
    if not _alike(problem.outputs.flatten(graph.value.outputs), value):
        return NotJudged("forward gives other values under torch.no_grad() than with a graph", watched=True)
    if differs_beside(problem):
        return NotJudged(
            "next to these inputs forward gives other values under torch.no_grad() than with a graph",
            watched=True,
        )
    return None


def differs_beside(problem: CallProblem) -> bool:
    """Whether forward gives other values with a graph a little beside x; False where it raises there.

    Two forwards.
    """
    inputs = Layout.of(problem.primals)
    x = inputs.flatten(problem.primals)
    beside = x + BESIDE * tangent_of(x, inputs, BESIDE_KEY)
    moved = problem.without_held(inputs.unflatten(beside))
    plain, graph = problem.evaluate(moved), problem.graph(moved)
    if isinstance(plain, Raised) or isinstance(graph, Raised):
        return False  # x lies at the edge of what forward takes: nothing is known beside it
    outputs = problem.outputs
    return not _alike(outputs.flatten(graph.value.outputs), outputs.flatten(plain.value))


def _alike(left: Tensor, right: Tensor) -> bool:
    return torch.allclose(left, right, rtol=64 * EPSILON, atol=0.0, equal_nan=True)
