"""Cases in, events out: the same code serves the worker process and the Python API."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

from gradverify.events import (
    AllowanceSpent,
    CaseStarted,
    DiagnosisStarted,
    Event,
    Found,
    Verify,
)
from gradverify.model import (
    Case,
    CasePoint,
    Engine,
    Finding,
    Outcome,
    Point,
    Severity,
)
from gradverify.model.points import is_declared, points_of
from gradverify.rules import Family
from gradverify.verifier import guard
from gradverify.verifier.building import Live
from gradverify.verifier.case_state import CaseState
from gradverify.verifier.checks.across_ranks import disagreements, not_judged, out_of_step
from gradverify.verifier.checks.allowance import Allowance
from gradverify.verifier.checks.branches import branches_seen
from gradverify.verifier.checks.contract import old_style
from gradverify.verifier.checks.first_order import backward_raised
from gradverify.verifier.checks.kept import Place
from gradverify.verifier.checks.result import CheckResult
from gradverify.verifier.checks.samples import prepare
from gradverify.verifier.checks.subject import NoSample, Sample, Subject
from gradverify.verifier.checks.undeclared import at_undeclared
from gradverify.verifier.diagnose import is_diagnosed
from gradverify.verifier.doubt.accidents import hangs_on_no_guess
from gradverify.verifier.doubt.inferred_inputs import guarded, guarded_at_undeclared
from gradverify.verifier.extra_cases import extra_cases
from gradverify.verifier.families import run_checks
from gradverify.verifier.guard import NotJudgedError
from gradverify.verifier.interpreter.launches import watch_kernels
from gradverify.verifier.ranks.world import OutOfStepError
from gradverify.verifier.short_inside import carried_out_in_float64, computes_in
from gradverify.verifier.verification import Verification, verifying


def verify(request: Verify, live: Live) -> Generator[Event, None, None]:
    """Verify a target on its cases; findings are sent as they are made."""
    with verifying(request, live) as asked:
        try:
            yield from _verified(asked, request, live)
        except OutOfStepError as error:
            yield from asked.reported([out_of_step(error, _last_place(asked))])
        except NotJudgedError as error:
            yield from asked.reported([not_judged(error, _last_place(asked))])


def _last_place(asked: Verification) -> CasePoint | None:
    return asked.visited[-1].where if asked.visited else None


def _verified(asked: Verification, request: Verify, live: Live) -> Iterator[Event]:
    live.kept.begin()
    before = guard.CALLS.made
    for case in request.plan.cases:
        yield from asked.deciding(case)
        built = asked.build(case)
        if isinstance(built, Finding):
            yield Found(built)
        else:
            yield from asked.noted(_listed_case(asked, case, *built), case)
    yield from extra_cases(asked)
    allowance = Allowance.after(guard.CALLS.made - before, request.settings.effort)
    live.kept.allowance = allowance
    if any(map(is_diagnosed, asked.findings)):
        from gradverify.verifier.diagnose.findings import causes_of  # noqa: PLC0415 - where one failed

        yield DiagnosisStarted()
        causes = causes_of(request.plan, asked.build, live.kept, asked.visited, asked.findings)
        yield from map(Found, causes)
        if allowance.is_short:
            yield AllowanceSpent(allowance.calls)


def _listed_case(asked: Verification, planned: Case, subject: Subject, case: Case) -> Iterator[Event]:
    """Judge every point of a case; `case` is the planned one with what a module has added to it."""
    state = CaseState()
    for point, draw in points_of(case, subject.settings.effort):
        if not is_declared(point, draw):
            if _can_add_something(state, subject):
                yield from _at_undeclared(asked, subject, case, state, (point, draw))
            continue
        yield CaseStarted(case.id, point, draw)
        sample = prepare(subject, case, point, draw)
        if isinstance(sample, NoSample):
            if sample.no_gradient:
                yield state.verified(case, no_gradient=True)
                return
            yield from asked.reported(_refused(sample, state))
            break
        yield from asked.reported(_judged(asked, sample, state))
        state.applied |= asked.applied(sample)
        subject = replace(subject, short=asked.live.kept.short)
        asked.live.kept.note(Place(planned, point, draw), state.last or sample)
    yield from asked.reported(state.never_judged())
    yield state.verified(case)


def _judged(asked: Verification, sample: Sample, state: CaseState) -> Iterator[Finding]:
    """What all checks that are asked for find at a declared point."""
    state.last = sample
    yield from _shared_values(sample, state)
    watch_kernels()  # those of a module that forward has imported
    results, not_judged = run_checks(sample, asked.wanted)
    in_float64 = carried_out_in_float64(sample, results, asked.wanted)
    if in_float64 is not None:
        sample, results, not_judged = in_float64
        asked.live.kept.short, state.last = sample.subject.short, sample
        if sample.subject.short:
            yield computes_in(sample, results)
    if not_judged:
        state.remarks[not_judged] = None
    results = guarded(sample, results, asked.findings)
    for family, result in results.items():
        state.add(family, result)
        yield from result.findings
    if asked.is_old_style and state.points == 0 and asked.is_first(sample.case):
        yield old_style(sample)
    yield from _shared_values(sample, state)
    state.add_point(sample, results)


def _shared_values(sample: Sample, state: CaseState) -> Iterator[Finding]:
    """What ranks were seen to disagree on: it fails the contract, whatever else is right."""
    for finding in disagreements(sample):
        state.outcomes[Family.CONTRACT] = Outcome.FAILED
        yield finding


def _refused(refused: NoSample, state: CaseState) -> tuple[Finding, ...]:
    """Why forward raised, which leaves nothing to judge."""
    failed = any(f.severity is Severity.ERROR for f in refused.findings)
    state.outcomes[Family.GRADCHECK] = Outcome.FAILED if failed else Outcome.INCONCLUSIVE
    return refused.findings


def _can_add_something(state: CaseState, subject: Subject) -> bool:
    """Whether undeclared values can.

    They cannot where backward is wrong anyway, is not meant to be the derivative, or is torch's to judge.
    Of inferred inputs backward must be the derivative at moderate values.
    """
    family = Family.PRECISION if subject.native else Family.GRADCHECK
    first, contract = state.outcomes[family], state.outcomes[Family.CONTRACT]
    verified = first is Outcome.PASSED or (first is Outcome.INCONCLUSIVE and not subject.inferred)
    meant = subject.surrogate is None and subject.settings.engine is not Engine.TORCH
    return verified and meant and contract is not Outcome.FAILED


def _at_undeclared(
    asked: Verification, subject: Subject, case: Case, state: CaseState, where: tuple[Point, int]
) -> Iterator[Event]:
    """Judge one undeclared draw; where forward refuses it or nothing can be measured, it is no point."""
    yield CaseStarted(case.id, *where)
    sample = prepare(subject, case, *where)
    if isinstance(sample, NoSample):
        return
    found = at_undeclared(sample)
    list(disagreements(sample))  # where values are extreme, ranks may differ by what cancels
    if found.judged:
        state.swept = state.swept.joined(branches_seen(sample))
    state.count_calls(sample)
    state.points += found.judged
    result = guarded_at_undeclared(sample, found.result)
    if found.raised is not None and hangs_on_no_guess(sample, found.raised):
        result = CheckResult((backward_raised(sample, found.raised),), Outcome.FAILED)
    state.add(sample.family, result)
    yield from asked.reported(result.findings)
