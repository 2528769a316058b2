"""After a verdict: each error at the smallest sizes and plainest values that show it in the same way.

The verdict does not change here. Small sizes and plain values are tried with the judge that found the
error, and only a finding with its code, output, input and cause takes its place in the report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gradverify.cases.further import without_cases
from gradverify.cases.smaller import at_sizes_of, sizes_of, smallest
from gradverify.events import Retried, Retry, Verify
from gradverify.model import (
    Case,
    CasePoint,
    Finding,
    Point,
    Severity,
    TargetReport,
    tensors_of,
)
from gradverify.rules import Family, rule
from gradverify.session.aggregate import NOT_LOOKED_FOR, TargetState
from gradverify.session.planning import Planned
from gradverify.session.request import Request
from gradverify.session.worker_ended import WorkerError, WorkerTimedOutError, with_shown_paths

MOST_TRIES = 12
"""Sizes tried for one finding: two for all of them together, three for each of three alone, one to spare."""

MOST_SHRUNK = 4
"""Findings of one target that are shrunk: a person reads the first ones."""

TOO_SLOW = "the search for smaller inputs: one step took longer than {:g} s"
"""What is said where a worker did not answer within the limit of a target's time."""

PLAIN_DRAWS = 3
"""Draws of plain values that are tried, see `gradverify.verifier.inputs.values`."""

REFUSED = "GV002"
"""The code of a forward that raises. Its message holds sizes, so it is shown at those of the spec."""

SHRINKABLE = (Family.GRADCHECK, Family.GRADGRADCHECK, Family.REFERENCE, Family.CONTRACT)


@dataclass(frozen=True)
class _Place:
    """Inputs at which a finding may show itself."""

    case: Case
    point: Point
    draw: int
    resized: Mapping[str, int] | None = None
    """The sizes it was asked at, by the names that they have in the first case; None for that case."""

    @property
    def sizes(self) -> dict[str, int]:
        """What may be made smaller; written sizes are named by what they were at first."""
        return dict(self.resized or sizes_of(self.case))


@dataclass
class _Spent:
    """Whether the errors of one target have taken the calls that they may."""

    calls: int = 0
    """That they may take, once a worker says that it would be more; 0 before."""


@dataclass
class _Attempts:
    """What is tried for one finding, and the last place at which it showed itself."""

    planned: Planned
    state: TargetState
    request: Request
    finding: Finding
    spent: _Spent
    at: _Place
    with_cause: bool = False
    """Its cause must be found again at each place, which takes the most of the time, and its changes hold."""
    best: Finding | None = None
    tries: int = 0

    @property
    def is_explained(self) -> bool:
        """Whether it has a cause, or a change, that may be another one elsewhere."""
        return bool(self.finding.cause or self.finding.changes)

    def restart(self, at: _Place, *, with_cause: bool) -> None:
        """Forget what was tried."""
        self.with_cause, self.tries, self.best, self.at = with_cause, 0, None, at

    def fails(self, place: _Place) -> bool:
        """Whether the finding shows itself there; then this is the best place.

        Raises `WorkerError`.
        """
        if self.tries >= MOST_TRIES + PLAIN_DRAWS or self.spent.calls:
            return False
        self.tries += 1
        found = self.seen(place, with_cause=self.with_cause)
        if found is not None:
            self.best, self.at = found, place
        return found is not None

    def seen(self, place: _Place, *, with_cause: bool) -> Finding | None:
        """The finding as it is there; None where it is not.

        Raises `WorkerError`.
        """
        verified = Verify(self.planned.target, without_cases(self.state.plan), self.state.settings)
        asked = Retry(verified, self.finding, place.point, place.draw, with_cause, place.case)
        answers = self.planned.module.answers(asked, self.request)
        retried = next((e for e in answers if isinstance(e, Retried)), Retried(None))
        self.spent.calls = retried.spent
        return retried.finding


def shrunk(report: TargetReport, planned: Planned, state: TargetState, request: Request) -> TargetReport:
    """The report with its errors at smaller and plainer inputs, where they occur there."""
    worker = planned.module.worker
    if worker is None or not worker.alive or state.unchecked_because:
        return report
    spent = _Spent()
    left_out: tuple[str, ...] = ()
    reported = {id(f): f for f in report.findings}
    places: dict[str, _Place] = {}
    past = {one.case.id for one in state.plan.beyond}  # its size is what it is about
    try:
        for finding in [f for f in report.findings if _is_shrinkable(f)][:MOST_SHRUNK]:
            case = next((c for c in state.every_case if finding.case and c.id == finding.case.id), None)
            if case is None or finding.case is None or case.id in past:
                continue
            at = _Place(case, finding.case.point, finding.case.draw)
            attempts = _Attempts(planned, state, request, finding, spent, at)
            if _is_shrunk(attempts, places.get(case.id)):
                reported[id(finding)] = _reported(attempts)
                places.setdefault(case.id, attempts.at)
    except WorkerError as error:
        if isinstance(error, WorkerTimedOutError):
            left_out = (TOO_SLOW.format(request.timeout),)
        planned.module.close()
    if spent.calls:
        left_out += (NOT_LOOKED_FOR.format(spent.calls),)
    found = _with_changes_that_hold([(f, reported[id(f)]) for f in report.findings])
    return replace(report, findings=found, left_out=tuple(dict.fromkeys((*report.left_out, *left_out))))


def _with_changes_that_hold(findings: Sequence[tuple[Finding, Finding]]) -> tuple[Finding, ...]:
    """Findings before and after, without changes that are not right at the inputs of another one."""
    refuted = {
        change.patch.key
        for before, after in findings
        for change in before.changes
        if change.patch and change not in after.changes
    }
    found = []
    for _, after in findings:
        left = tuple(c for c in after.changes if not c.patch or c.patch.key not in refuted)
        is_same = left == after.changes
        found.append(after if is_same else replace(after, changes=left, cause="", hint="", factor=None))
    return tuple(found)


def _is_shrinkable(finding: Finding) -> bool:
    family = rule(finding.code).family
    return finding.severity is Severity.ERROR and finding.case is not None and family in SHRINKABLE


def _is_shrunk(attempts: _Attempts, known: _Place | None) -> bool:
    """Look for a smaller place; `known` is one where another finding on the same case shows itself.

    Raises `WorkerError`.
    """
    caused, start = bool(attempts.finding.cause), attempts.at
    if known is not None:
        attempts.with_cause = attempts.is_explained
        if attempts.fails(known):
            return True
    attempts.restart(start, with_cause=False)
    if _has_a_smaller_place(attempts):
        return True
    if not caused:
        return False
    attempts.restart(start, with_cause=True)
    return _has_a_smaller_place(attempts)


def _has_a_smaller_place(attempts: _Attempts) -> bool:
    """Go through sizes, then values; a cause that was not looked for on the way must be found at the end.

    A change of backward that is not right there goes.
    """
    _with_smaller_sizes(attempts)
    _with_plainer_values(attempts)
    if attempts.best is not None and attempts.is_explained and not attempts.with_cause:
        attempts.best = attempts.seen(attempts.at, with_cause=True)
    return attempts.best is not None


def _reported(attempts: _Attempts) -> Finding:
    """The finding as it is at the best place; its hint covers all that was seen before."""
    finding, found, there = attempts.finding, attempts.best, attempts.at
    case = finding.case
    if found is None or case is None:
        return finding
    where = CasePoint(there.case.id, there.case.sizes, there.case.options, there.point, there.draw)
    if found.changes != finding.changes:
        cause, hint, factor = found.cause, found.hint, found.factor
        finding = replace(finding, changes=found.changes, cause=cause, hint=hint, factor=factor)
    elif not finding.cause and found.hint:  # without a cause a hint belongs to the message
        finding = replace(finding, hint=found.hint)
    return replace(
        finding,
        message=found.message,
        entries=found.entries,
        map=found.map,
        raised=with_shown_paths(found.raised, attempts.state.module),
        shown_inputs=found.shown_inputs,
        case=replace(case, shrunk=where),
    )


def _with_smaller_sizes(attempts: _Attempts) -> None:
    first = attempts.at
    asked = attempts.state.plan.asked
    if asked is None or attempts.finding.code == REFUSED:
        return
    known: dict[str, bool] = {}

    def fails(sizes: dict[str, int]) -> bool:
        smaller = at_sizes_of(asked, first.case, sizes)
        if smaller is None:
            return False
        if smaller.id not in known and attempts.tries < MOST_TRIES:
            known[smaller.id] = attempts.fails(_Place(smaller, first.point, first.draw, sizes))
        return known.get(smaller.id, False)

    smallest(sizes_of(first.case), fails)


def _with_plainer_values(attempts: _Attempts) -> None:
    """Take the first draw of plain values that shows it; extreme values stay as they are."""
    at = attempts.at
    if at.point is Point.TYPICAL and _are_drawn(at.case):
        any(attempts.fails(replace(at, point=Point.PLAIN, draw=draw)) for draw in range(PLAIN_DRAWS))


def _are_drawn(case: Case) -> bool:
    """Whether plain values are to be had: a hook draws its own."""
    return not case.hook and any(_drawn(case))


def _drawn(case: Case) -> Iterator[bool]:
    for an_input in case.inputs:
        for tensor in tensors_of(an_input):
            yield tensor.value is None and not tensor.make and tensor.dtype.startswith(("float", "complex"))
