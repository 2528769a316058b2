"""From a problem to a judged Jacobian: measured, compared, and every conflict confirmed.

This is the seam for the engine: whoever gives a `Judged` for a `Problem` can take the verdict over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.analytical import analytical_jacobian
from gradverify.verifier.numerics.compare import Comparison, compare
from gradverify.verifier.numerics.compressed import measured_together
from gradverify.verifier.numerics.confirm import confirm_columns
from gradverify.verifier.numerics.eight_bits import computes_in_eight_bits
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.jacobian import KnownColumns, NumericalJacobian, joined, numerical_jacobian
from gradverify.verifier.numerics.noise import own_noise
from gradverify.verifier.numerics.nonsmooth_rows import explained_by_other_pieces
from gradverify.verifier.numerics.own_rounding import without_own_rounding
from gradverify.verifier.numerics.probes import tangent_of
from gradverify.verifier.numerics.problem import CallProblem, Problem
from gradverify.verifier.numerics.round_off import ROWS_APART, backward_round_off, may_be_round_off
from gradverify.verifier.numerics.sparing import FEWEST, Found, sparing_jacobian
from gradverify.verifier.numerics.submaps import Restricted
from gradverify.verifier.numerics.tolerance import EPSILON, SAFETY, Tolerance

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


class Columns(Enum):
    """Which columns of a Jacobian may be measured together: never those with which something is wrong."""

    TOGETHER = auto()
    """Those that meet in no output, if all that could be known of each is known then."""
    IF_RIGHT = auto()
    """The same, if only mistakes matter; where there are none, the columns of what is told are groups."""


@dataclass(frozen=True)
class _Asked:
    """How a Jacobian is to be measured, see `judge`."""

    tolerance: Tolerance
    noise: Tensor | None
    known: KnownColumns | None
    columns: Columns


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
    inputs = inputs_of(problem)
    asked = _Asked(tolerance, noise, known, columns)
    found = _by_few_forwards(problem, centre, analytical.value, asked)
    if isinstance(found, Judged):
        return found
    if found is None:
        measured = numerical_jacobian(problem, centre, suspect=analytical.value, noise=noise, known=known)
    else:
        measured = found.measured
    comparison = compare(analytical.value, measured, inputs, problem.outputs, tolerance)
    suspicious = comparison.wrong | comparison.imprecise
    if suspicious.any():
        rows = _rows_that_may_round(comparison, suspicious, inputs)
        round_off = backward_round_off(problem, rows, analytical.value)
        careful = replace(tolerance, round_off=round_off)
        comparison = compare(analytical.value, measured, inputs, problem.outputs, careful)
        already = None if found is None else found.confirmed
        comparison = confirmed(problem, measured, comparison, known, already, tolerance.rtol)
        comparison = without_own_rounding(problem, inputs, measured, comparison)
        short = computes_in_eight_bits(problem) if comparison.wrong.any() else ""
        if short:
            return NotJudged(f"forward computes in {short} inside, on stairs too coarse for any step")
    return Judged(comparison, measured, inputs, problem.outputs)


def _rows_that_may_round(comparison: Comparison, suspicious: Tensor, inputs: Layout) -> Tensor:
    """Rows (bool, M) whose rounding in backward is worth measuring.

    A few always, since what is told of them names it; of many, those alone that it could explain.
    """
    rows = suspicious.any(dim=1)
    if rows.sum() <= ROWS_APART:
        return rows
    difference = (comparison.analytical - comparison.numerical).abs()
    unexplained = (difference - comparison.bound) / SAFETY
    return (suspicious & may_be_round_off(unexplained, inputs, comparison.analytical)).any(dim=1)


def _by_few_forwards(
    problem: Problem, centre: Tensor, claimed: Tensor, asked: _Asked
) -> Judged | Found | None:
    """A verdict by groups of columns, or what they and random directions have shown of a wrong claim."""
    count = claimed.shape[1] - (0 if asked.known is None else asked.known.count)
    if asked.columns is Columns.IF_RIGHT or count < FEWEST:
        return _together(problem, centre, claimed, asked)
    found = sparing_jacobian(problem, centre, claimed[:, :count], asked.tolerance, noise=asked.noise)
    if found is None or asked.known is None:
        return found
    own = own_noise(centre, problem.outputs)
    own = own if asked.noise is None else torch.maximum(own, asked.noise)
    rest = torch.zeros(claimed.shape[0], asked.known.count, dtype=torch.bool)
    return Found(joined(found.measured, asked.known, own), torch.cat([found.confirmed, rest], dim=1))


def _together(problem: Problem, centre: Tensor, claimed: Tensor, asked: _Asked) -> Judged | None:
    """The verdict where every group of columns agrees with the claim; None where one does not."""
    only_mistakes = asked.columns is Columns.IF_RIGHT
    count = claimed.shape[1] - (0 if asked.known is None else asked.known.count)
    slopes = measured_together(
        problem, centre, claimed[:, :count], asked.tolerance.rtol, noise=asked.noise, meeting=only_mistakes
    )
    if slopes is None or bool((slopes.comparison.wrong | slopes.comparison.nonfinite).any()):
        return None
    if only_mistakes and slopes.hides(asked.tolerance.rtol):
        return None
    if only_mistakes:
        columns = Layout.of(slopes.together.primals)
        return Judged(slopes.comparison, slopes.measured, columns, problem.outputs, in_groups=True)
    measured = slopes.entries()
    if asked.known is not None:
        own = own_noise(centre, problem.outputs)
        own = own if asked.noise is None else torch.maximum(own, asked.noise)
        measured = joined(measured, asked.known, own)
    inputs = inputs_of(problem)
    comparison = compare(claimed, measured, inputs, problem.outputs, asked.tolerance)
    conflicts = comparison.wrong | comparison.imprecise | comparison.nonfinite | comparison.kinks
    if bool(conflicts.any()) or not bool(comparison.covered.all()):
        return None
    return Judged(comparison, measured, inputs, problem.outputs)


def inputs_of(problem: Problem) -> Layout:
    """The columns of a problem's Jacobian."""
    return problem.chosen_inputs if isinstance(problem, Restricted) else Layout.of(problem.primals)


def centre_of(problem: Problem) -> Tensor | NotJudged:
    """f(x), if it can be evaluated, repeats itself, and does not depend on being watched."""
    values = []
    for _ in range(2):
        result = problem.evaluate(problem.primals)
        if isinstance(result, Raised):
            return NotJudged(f"forward raised {result.error.type} under torch.no_grad()")
        values.append(problem.outputs.flatten(result.value))
    if not torch.equal(values[0].nan_to_num(), values[1].nan_to_num()):
        return NotJudged("forward gives other values at each call, random states replayed (stochastic)")
    seen = _unlike_with_a_graph(problem, values[0]) if isinstance(problem, CallProblem) else None
    return values[0] if seen is None else seen


def _unlike_with_a_graph(problem: CallProblem, value: Tensor) -> NotJudged | None:
    """Whether forward gives other values where a graph is recorded, at x or a little beside it.

    What differs beside x alone has another derivative: as where inputs are made symmetric only if they
    require grad, at a symmetric one.
    """
    graph = problem.graph(problem.primals)
    if isinstance(graph, Raised):
        return NotJudged(f"forward raised {graph.error.type} at its second call")
    if not _alike(problem.outputs.flatten(graph.value.outputs), value):
        return NotJudged("forward gives other values under torch.no_grad() than with a graph")
    if differs_beside(problem):
        return NotJudged(
            "a little beside these inputs forward gives other values under torch.no_grad() than with a graph"
        )
    return None


def differs_beside(problem: CallProblem) -> bool:
    """Whether forward gives other values with a graph a little beside x; False where it raises there.

    Two forwards.
    """
    x = inputs_of(problem).flatten(problem.primals)
    beside = x + BESIDE * tangent_of(x, inputs_of(problem), BESIDE_KEY)
    moved = problem.without_held(inputs_of(problem).unflatten(beside))
    plain, graph = problem.evaluate(moved), problem.graph(moved)
    if isinstance(plain, Raised) or isinstance(graph, Raised):
        return False  # x lies at the edge of what forward takes: nothing is known beside it
    outputs = problem.outputs
    return not _alike(outputs.flatten(graph.value.outputs), outputs.flatten(plain.value))


def _alike(left: Tensor, right: Tensor) -> bool:
    return torch.allclose(left, right, rtol=64 * EPSILON, atol=0.0, equal_nan=True)


def confirmed(
    problem: Problem,
    measured: NumericalJacobian,
    comparison: Comparison,
    known: KnownColumns | None = None,
    already: Tensor | None = None,
    faint: float = 0.0,
) -> Comparison:
    """Keep only conflicts that an independent measurement repeats; the others are not covered.

    A difference that does not repeat itself is a sample of the error there: where it is below `faint` of what
    is ordinary in its block, errors beyond it would have been seen. `already` are entries (bool, M × N) whose
    conflicts need no more of that. What is the derivative of one of several pieces that meet here lies on a
    kink, and is none.
    """
    conflicts = comparison.wrong | comparison.imprecise
    settled = torch.zeros_like(conflicts) if already is None else conflicts & already
    open_ones = conflicts & ~settled
    repeated = settled | confirm_columns(problem, measured, comparison.analytical, open_ones, known)
    dropped = conflicts & ~repeated
    difference = (comparison.analytical - comparison.numerical).abs()
    seen = comparison.visible * (difference / comparison.bound)
    small = dropped & (seen > 0) & (seen <= faint)
    explained = explained_by_other_pieces(problem, measured, comparison.analytical, conflicts & repeated)
    return replace(
        comparison,
        wrong=comparison.wrong & repeated & ~explained,
        imprecise=comparison.imprecise & repeated & ~explained,
        kinks=comparison.kinks | explained,
        covered=comparison.covered & ~(dropped & ~small),
        visible=torch.where(small, seen, comparison.visible),
        bound=torch.where(small, difference, comparison.bound),
    )
