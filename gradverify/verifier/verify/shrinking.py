"""Each error at the smallest sizes and plainest values that show it: fewer numbers, and no other verdict.

It is right because a place is shown only where a witness refutes the same gradient: derived, if forward's
values have confirmed it, or else their slopes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import torch
from torch import Tensor

from gradverify.cases.smaller import at_sizes_of, sizes_of, smallest
from gradverify.events import DiagnosisStarted, Event, Found
from gradverify.model import Case, Finding, Point, Severity, TargetPlan, tensors_of
from gradverify.rules import Family, rule
from gradverify.verifier.guard import NotJudgedError, OutOfStepError, Raised
from gradverify.verifier.neighbours.meant import worst_entries
from gradverify.verifier.numerics.problem import CallProblem
from gradverify.verifier.questions.findings import wrong_gradient, wrong_second
from gradverify.verifier.questions.orders import LINEAR, backward_raised, is_cut, nonlinear
from gradverify.verifier.questions.subject import NoSample, Sample, prepare
from gradverify.verifier.questions.witnessing import (
    first_asked,
    other_beside,
    rounding_of,
    second_asked,
    slopes,
)
from gradverify.verifier.verify.kept import Allowance, Build, Kept, Place
from gradverify.verifier.witnesses.answers import Asked, Wrong
from gradverify.verifier.witnesses.claim import units
from gradverify.verifier.witnesses.proof import differing

MOST_CALLS = 60
"""Calls of user code that the smaller inputs of one target may cost."""

BESIDE_ROWS = 4
"""Calls of a try at one sample beside two for each row of its Jacobian."""

OF_A_SLOPE = 28
"""Calls that one column may take where slopes are the only witness: four steps, and both sides of a kink."""

MOST_SHRUNK = 4
"""Findings of one target that are shrunk: a person reads the first ones."""

SHRUNK = frozenset({Family.GRADCHECK, Family.GRADGRADCHECK})
"""Families whose errors a Jacobian shows."""

REFUSED = "GV002"
"""The code of a forward that raises. Its message holds sizes, so it is shown at those of the spec."""

SAME_FACTOR = 1e-6
"""Relative: two measurements of one factor agree to more."""

FAINT = 1e-2
"""Share of the reported difference below which another place is not reported instead: two numbers that are
normalised are -1 and 1 whatever they are, so that an error in that is 1e-6 there instead of 0.3."""


def with_smaller_inputs(
    events: Iterator[Event], plan: TargetPlan, kept: Kept, build: Build
) -> Iterator[Event]:
    """The events of a target; then its errors once more, at smaller and plainer inputs that show them."""
    found: list[Finding] = []
    for event in events:
        found += [event.finding] if isinstance(event, Found) else []
        yield event
    # Past a constant the size is what it is about.
    cases = {case.id: case for case in (*plan.cases, *plan.open_sized, *plan.degenerate)}
    search = _Search(plan, kept, build, Allowance.of(MOST_CALLS))
    for finding in _shrinkable(found, cases):
        yield DiagnosisStarted()  # whatever happens from here on costs no verdict
        assert finding.case is not None  # noqa: S101 - it is shrinkable
        case = cases[finding.case.id]
        try:
            place = search.place_of(finding, Place(case, finding.case.point, finding.case.draw))
        except (OutOfStepError, NotJudgedError):  # another mistake than the one that is looked for
            return
        if place is not None:
            yield Found(_reported(finding, search.seen(finding, place), place, kept))


def _shrinkable(found: Sequence[Finding], cases: dict[str, Case]) -> list[Finding]:
    """The errors that a report has, as it has them, on these cases."""
    reported: dict[tuple[str, str, str, int], Finding] = {}
    for f in found:
        is_error = f.severity is Severity.ERROR and rule(f.code).family in SHRUNK
        if is_error and f.case is not None and f.case.id in cases:
            key = f.code, f.part, f.input or "", -1 if f.output is None else f.output
            reported[key] = min(reported.get(key, f), f, key=lambda one: one.telling)
    return [reported[key] for key in sorted(reported)][:MOST_SHRUNK]


def _reported(finding: Finding, found: Finding | None, place: Place, kept: Kept) -> Finding:
    """The finding as it is at the best place; a change of backward that is not right there goes."""
    assert found is not None and finding.case is not None  # noqa: S101 - it was seen there
    explained = finding if kept.with_what_holds is None else kept.with_what_holds(finding, place)
    return replace(
        explained,
        message=found.message,
        entries=found.entries,
        map=found.map,
        raised=found.raised,
        shown_inputs=found.shown_inputs,
        case=replace(finding.case, shrunk=place.where),
    )


@dataclass
class _Search:
    """What was seen where, until the calls are spent."""

    plan: TargetPlan
    kept: Kept
    build: Build
    allowance: Allowance
    known: dict[tuple[Place, int], tuple[Finding, ...]] = field(default_factory=dict)
    """What is wrong, by the place and the order of the derivative."""
    shown: list[Place] = field(default_factory=list)
    """Where other findings are shown: the reader has met these inputs."""

    def place_of(self, finding: Finding, start: Place) -> Place | None:
        """The smallest and plainest inputs at which a finding shows itself; None where no others do."""
        there = (p for p in self.shown if p.case.options == start.case.options and self.seen(finding, p))
        starts = (replace(start, point=point, draw=draw) for point, draw in _draws(start))
        smaller = (self._smaller(finding, one) for one in starts)
        best = next((p for p in chain(there, smaller) if p is not None), None)
        self.shown += [] if best is None else [best]
        return best

    def _smaller(self, finding: Finding, start: Place) -> Place | None:
        """The smallest place at which it was seen."""
        best: Place | None = None
        asked = self.plan.asked

        def shows(sizes: dict[str, int]) -> bool:
            nonlocal best
            case = None if asked is None else at_sizes_of(asked, start.case, sizes)
            place = start if case is None else replace(start, case=case)
            is_shown = case is not None and self.seen(finding, place) is not None
            best = place if is_shown else best
            return is_shown

        if finding.code != REFUSED and asked is not None:
            smallest(sizes_of(asked, start.case), shows)
        is_plain = start.point is Point.PLAIN and best is None
        return start if is_plain and self.seen(finding, start) else best

    def seen(self, finding: Finding, place: Place) -> Finding | None:
        """The finding as it is there; None where it is not, or where that would take too many calls."""
        key = place, _order(finding)
        if key not in self.known:
            self.known[key] = self._looked(*key)
        found = (_as_reported(finding, one) for one in self.known[key])
        return next((one for one in found if one is not None), None)

    def _looked(self, place: Place, order: int) -> tuple[Finding, ...]:
        built = self.build(place.case) if self.allowance.left > BESIDE_ROWS else None
        if built is None or isinstance(built, Finding) or built[0].surrogate is not None:
            return ()
        sample = self.kept.samples[place] = prepare(*built, place.point, place.draw)
        if isinstance(sample, NoSample):
            return sample.findings
        count = sample.problem.outputs.size if order == 1 else sample.inputs.size
        if not self.allowance.covers(order * BESIDE_ROWS + 2 * count):
            return ()
        asked = first_asked(sample) if order == 1 else second_asked(sample)
        if asked is None:
            return ()
        rows = units(asked.problem.outputs.size)
        claimed = asked.claim.rows(rows)
        if isinstance(claimed, Raised):
            return (backward_raised(sample, claimed.error),) if order == 1 else ()
        expected, error = self._expected(asked, rows)
        off = differing(asked, claimed, expected, rows) & error.isfinite() & ~expected.isnan()
        off &= ~((claimed - expected).abs() <= error)
        bends = other_beside(asked, expected, rows) if asked.is_trusted and off.any() else ~off
        return tuple(_wrong(sample, asked, (claimed, expected, error, off, off & bends)))

    def _expected(self, asked: Asked, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The Jacobian as a witness has it, and how far it may be off: infinite where that is not known."""
        if asked.witness is None or not asked.is_trusted:
            return slopes(asked, self.allowance.until - OF_A_SLOPE)
        expected = asked.derived_rows(rows)
        if expected is None:
            unknown = torch.full((len(rows), len(asked.values.x)), torch.inf, dtype=torch.float64)
            return unknown, unknown
        return expected, rounding_of(asked, expected)


def _order(finding: Finding) -> int:
    """Of the derivative that it is about."""
    return 2 if rule(finding.code).family is Family.GRADGRADCHECK else 1


def _draws(start: Place) -> Iterator[tuple[Point, int]]:
    """Plain values for typical ones, if the case draws any; then those at which it was found."""
    tensors = [tensor for an_input in start.case.inputs for tensor in tensors_of(an_input)]
    continuous = (t for t in tensors if t.dtype.startswith(("float", "complex")))
    drawn = [t for t in continuous if t.value is None and not t.make]
    if start.point is Point.TYPICAL and not start.case.hook and drawn:
        yield Point.PLAIN, 0
    yield start.point, start.draw


def _wrong(sample: Sample, asked: Asked, matrices: Sequence[Tensor]) -> Iterator[Finding]:
    """A finding for each (output, input): of claimed, expected, its error, what is wrong, and at a kink."""
    problem = asked.problem
    for o, output in enumerate(problem.outputs.blocks):
        for i, source in enumerate(asked.values.inputs.blocks):
            claimed, expected, error, off, kinks = (m[output.span, source.span] for m in matrices)
            if not off.any():
                continue
            wrong = Wrong.of(claimed, expected, error, off, output.start, source.start)
            wrong = replace(wrong, kink=bool(kinks.any()))
            if isinstance(problem, CallProblem):
                yield wrong_gradient(sample, problem.output_positions[o], i, wrong)
            else:
                yield wrong_second(sample, problem, (o, i), wrong, cut=is_cut(asked))


def _as_reported(reported: Finding, found: Finding) -> Finding | None:
    """What was found, if it is the mistake that was reported; where only a part was wrong, a part is."""
    if reported.code == "GV106" and reported.cause in LINEAR:
        found = nonlinear(found, reported.cause)
    there, here = ((f.code, f.part, f.input, f.output) for f in (reported, found))
    if there != here:
        return None
    is_same = (
        not _size(found) < FAINT * _size(reported)  # which may be NaN
        and _place_of(found) == _place_of(reported)
        and _is_whole(found) <= _is_whole(reported)
        and _has_the_factor(found, reported.factor)
    )
    return found if is_same else None


def _size(finding: Finding) -> float:
    """The largest difference among the entries that it shows; 0 where it shows none."""
    return max((abs(e.actual - e.expected) for e in worst_entries(finding)), default=0.0)


def _is_whole(finding: Finding) -> bool:
    """Whether every entry that was compared is wrong."""
    return finding.entries is not None and finding.entries.wrong == finding.entries.checked


def _has_the_factor(finding: Finding, factor: float | None) -> bool:
    """Whether the entries that it shows are off by the factor that was named, which may follow a size."""
    worst = () if factor is None else worst_entries(finding)
    return all(abs(e.actual - (factor or 1.0) * e.expected) <= SAME_FACTOR * abs(e.actual) for e in worst)


def _place_of(finding: Finding) -> tuple[str, int] | None:
    """What was raised, and on which line."""
    raised = finding.raised
    return None if raised is None else (raised.type, raised.frames[-1].line if raised.frames else 0)
