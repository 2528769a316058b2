"""After a verdict: each error is told at the smallest sizes and plainest values that show it in the same way.

The verdict stands whatever happens here. Small sizes and plain values are tried with the judge that found the
error, and only a finding with its code, output, input and cause takes its place in the report.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from gradverify.events import Retried, Retry, Verify
from gradverify.model import Case, CasePoint, Finding, Point, Severity, TargetReport, tensors_of
from gradverify.rules import Family, rule
from gradverify.session.aggregate import TargetState
from gradverify.session.planning import Planned
from gradverify.session.pool import WorkerError
from gradverify.session.request import Request
from gradverify.session.traces import with_shown_paths
from gradverify.spec import resizing, sizes_of, smallest

MOST_TRIES = 12
"""Sizes tried for one finding: two for all of them together, three for each of three alone, one to spare."""

MOST_SHRUNK = 4
"""Findings of one target that are shrunk: a person reads the first ones."""

MOST_SECONDS = 10.0
"""What looking for smaller inputs may take, and what verifying a target may have taken for it to be tried."""

PLAIN_DRAWS = 3
"""Draws of plain values that are tried, see `gradverify.verifier.inputs.plain`."""

SHRINKABLE = (Family.GRADCHECK, Family.GRADGRADCHECK, Family.REFERENCE, Family.CONTRACT)


@dataclass
class _Attempts:
    """What was tried for one finding, and the best that came of it."""

    planned: Planned
    state: TargetState
    request: Request
    finding: Finding
    until: float
    case: Case
    point: Point
    draw: int
    best: Finding | None = None
    tries: int = 0
    known: dict[tuple[str, Point, int], bool] = field(default_factory=dict)

    def fails(self, case: Case, point: Point, draw: int) -> bool:
        """Whether the finding shows itself there; it is the best one then.

        Raises `WorkerError`.
        """
        key = case.id, point, draw
        if key not in self.known:
            if self.tries >= MOST_TRIES + PLAIN_DRAWS or self.request.clock() > self.until:
                return False
            self.tries += 1
            self.known[key] = self._try(case, point, draw)
        return self.known[key]

    def _try(self, case: Case, point: Point, draw: int) -> bool:
        asked = Retry(
            Verify(self.planned.target, replace(self.state.plan, cases=(case,)), self.state.settings),
            self.finding,
            point,
            draw,
        )
        worker = self.planned.module.running(self.request)
        limit = max(0.0, self.until - self.request.clock())
        answers = list(worker.ask(asked, min(self.request.timeout, limit), self.request.memory))
        found = next((e.finding for e in answers if isinstance(e, Retried)), None)
        if found is None:
            return False
        self.best, self.case, self.point, self.draw = found, case, point, draw
        return True


def shrunk(report: TargetReport, planned: Planned, state: TargetState, request: Request) -> TargetReport:
    """The report with its errors told at smaller and plainer inputs, where they show themselves there."""
    worker = planned.module.worker
    if worker is None or not worker.alive or state.unchecked_because or not report.findings:
        return report
    until = request.clock() + MOST_SECONDS
    told = {id(f): f for f in report.findings}
    for finding in [f for f in report.findings if _is_shrinkable(f)][:MOST_SHRUNK]:
        try:
            told[id(finding)] = _told(finding, planned, state, request, until)
        except WorkerError:
            planned.module.close()
            break
    return replace(report, findings=tuple(told[id(f)] for f in report.findings))


def _is_shrinkable(finding: Finding) -> bool:
    family = rule(finding.code).family
    return finding.severity is Severity.ERROR and finding.case is not None and family in SHRINKABLE


def _told(
    finding: Finding, planned: Planned, state: TargetState, request: Request, until: float
) -> Finding:
    where = finding.case
    case = next((c for c in state.plan.cases if where is not None and c.id == where.id), None)
    if where is None or case is None:
        return finding
    attempts = _Attempts(planned, state, request, finding, until, case, where.point, where.draw)
    _with_smaller_sizes(attempts)
    _with_plainer_values(attempts)
    found = attempts.best
    if found is None:
        return finding
    state.shrunk.append(attempts.case)
    there = attempts.case
    return replace(
        finding,
        message=found.message,
        hint=found.hint or finding.hint,
        entries=found.entries,
        map=found.map,
        raised=with_shown_paths(found.raised, state.module),
        shown_inputs=found.shown_inputs,
        case=replace(
            where, shrunk=CasePoint(there.id, there.sizes, there.options, attempts.point, attempts.draw)
        ),
    )


def _with_smaller_sizes(attempts: _Attempts) -> None:
    function = attempts.planned.module.function_of(attempts.planned.target)
    if function is None:
        return
    case, point, draw = attempts.case, attempts.point, attempts.draw
    at = resizing(function, case, attempts.planned.target.parameters, attempts.state.settings.seed)

    def fails(sizes: dict[str, int]) -> bool:
        smaller = at(sizes)
        if smaller is None or attempts.tries >= MOST_TRIES:
            return False
        return attempts.fails(smaller, point, draw)

    smallest(sizes_of(case), fails)


def _with_plainer_values(attempts: _Attempts) -> None:
    """Take the first draw of plain values that shows it; extreme values stay as they are."""
    if attempts.point is not Point.TYPICAL or not _are_drawn(attempts.case):
        return
    for draw in range(PLAIN_DRAWS):
        if attempts.fails(attempts.case, Point.PLAIN, draw):
            return


def _are_drawn(case: Case) -> bool:
    """Whether plain values are to be had: a hook draws its own."""
    return not case.hook and any(_drawn(case))


def _drawn(case: Case) -> Iterator[bool]:
    for an_input in case.inputs:
        for tensor in tensors_of(an_input):
            yield tensor.value is None and not tensor.make and tensor.dtype.startswith(("float", "complex"))
