"""Cases in, events out: the same code serves the worker process and the Python API."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Protocol

from gradverify.events import (
    BeyondJudged,
    BeyondStarted,
    CaseStarted,
    Contradicted,
    DiagnosisStarted,
    Event,
    Found,
    Priced,
    Verify,
)
from gradverify.model import (
    Case,
    Engine,
    Evaluations,
    Finding,
    Outcome,
    Point,
    Price,
    Severity,
    Swept,
    TargetKind,
    allowance,
)
from gradverify.model.points import is_declared, points_of
from gradverify.rules import Family
from gradverify.verifier.asked import is_wanted, wanted_families
from gradverify.verifier.building import Live, build_subject
from gradverify.verifier.case_state import CaseState, case_verified, has_entries, never_judged
from gradverify.verifier.checks import run_checks
from gradverify.verifier.checks.beyond import judge_beyond
from gradverify.verifier.checks.branches import branches_seen
from gradverify.verifier.checks.contract import old_style
from gradverify.verifier.checks.diagnosed import is_diagnosed
from gradverify.verifier.checks.early_evidence import contradicted
from gradverify.verifier.checks.given_options import with_given_options
from gradverify.verifier.checks.inferred import guarded
from gradverify.verifier.checks.kept import Kept, Place
from gradverify.verifier.checks.precision.alone import refusing_float64
from gradverify.verifier.checks.precision.at_other_sizes import wrong_natively
from gradverify.verifier.checks.pricing import price_at, timed
from gradverify.verifier.checks.reading import Reader, reading_backward, reading_operator
from gradverify.verifier.checks.result import CheckResult
from gradverify.verifier.checks.subject import NoSample, Sample, Subject, prepare
from gradverify.verifier.checks.undeclared import at_undeclared
from gradverify.verifier.checks.unlisted import at_unlisted
from gradverify.verifier.checks.variations.across_cases import MOST_CASES, overlapping_cases
from gradverify.verifier.collect.discover import is_old_style
from gradverify.verifier.collect.operators import operator_of
from gradverify.verifier.devices import exact_arithmetic
from gradverify.verifier.evaluation import in_evaluation_mode
from gradverify.verifier.guard import default_dtype
from gradverify.verifier.history import History
from gradverify.verifier.interpreting import watch_kernels


class Evidence(Protocol):
    """What is looked for before the checks of a case."""

    def __call__(self, subject: Subject, case: Case, request: Verify, *, asked: bool) -> Iterator[Event]:
        """Events of what is found, where it is asked for."""


def verify(request: Verify, live: Live) -> Generator[Event, None, None]:
    """Verify a target on its cases; findings are sent as they are made."""
    is_function = request.target.kind is TargetKind.FUNCTION
    with ExitStack() as stack:
        stack.enter_context(default_dtype(request.plan.default_dtype))
        stack.enter_context(exact_arithmetic())
        operator = operator_of(live.value) if request.target.kind is TargetKind.CUSTOM_OP else None
        reader = None
        if is_function:
            reader = stack.enter_context(reading_backward(live.value, live.kept.reader))
        elif operator is not None and operator.backward is not None:
            reader = stack.enter_context(reading_operator(operator))
        history = History()
        live.kept.begin()
        for number, case in enumerate(request.plan.cases):
            built = build_subject(request, live, case, reader)
            if isinstance(built, Finding):
                yield Found(built)
                continue
            subject, full_case = built
            old = is_function and number == 0 and is_old_style(live.value)
            note = partial(_note, live.kept, case)
            evidence = _early_evidence if number == 0 and not request.inferred else _no_evidence
            for event in _verify_case(
                subject, full_case, request, history.findings, note, evidence, old_style_class=old
            ):
                history.add(event, case)
                yield event
        for case in (*request.plan.open_sized, *request.plan.degenerate):
            # Inferred inputs at which nothing was verified are no better where they are empty.
            stands = history.is_verified if request.inferred else history.stands
            for event in at_unlisted_sizes(request, live, case, reader) if stands else ():
                history.add(event, case)
                yield event
        yield from _once_verified(request, live, reader, history)
        if any(f.severity is Severity.ERROR for f in history.findings):
            yield Priced(_with_price(request, live.kept))
        if any(is_diagnosed(f) for f in history.findings):
            from gradverify.verifier.checks.diagnosis import causes_of  # noqa: PLC0415 - where one failed

            yield DiagnosisStarted()
            causes = causes_of(
                request.plan,
                lambda case: build_subject(request, live, case, reader),
                live.kept,
                history.visited,
                history.findings,
            )
            yield from (Found(finding) for finding in causes)


def _with_price(request: Verify, kept: Kept) -> Price:
    """What a call costs at the base case, and with that what the errors may cost."""
    price = request.settings.price
    if price is None:
        base = next((one for one in kept.samples.values() if isinstance(one, Sample)), None)
        price = Price.LEAST if base is None else price_at(base)
    kept.allow(allowance(price, request.settings.effort))
    return price


def _note(kept: Kept, case: Case, sample: Sample) -> None:
    """Keep what was measured of a case as it was planned, whatever a module has added to it."""
    kept.note(Place(case, sample.point, sample.draw), sample)


def _once_verified(request: Verify, live: Live, reader: Reader | None, history: History) -> Iterator[Event]:
    """What only a target whose every case is right is asked."""
    if history.is_verified and is_wanted("GV408", request.settings, request.ignored):
        for event in _across_cases(request, live, reader):
            history.add(event, request.plan.cases[0])
            yield event
    if history.is_verified and is_wanted("GV101", request.settings, request.ignored):
        wanted = wanted_families(request.settings, request.ignored)
        yield from _past_constants(request, live, reader, wanted)
        if request.target.kind is TargetKind.MODULE:
            yield from in_evaluation_mode(request, live)


def at_unlisted_sizes(request: Verify, live: Live, case: Case, reader: Reader | None) -> Iterator[Event]:
    """Judge the first order at sizes that nobody listed; where forward refuses them, that is a note."""
    built = build_subject(request, live, case, reader)
    if isinstance(built, Finding):
        return
    subject, full_case = built
    if subject.surrogate is not None or subject.settings.engine is Engine.TORCH:
        return
    yield CaseStarted(case.id, Point.TYPICAL, 0)
    sample = prepare(subject, full_case, Point.TYPICAL, 0)
    found = at_unlisted(sample, open_sized=case in request.plan.open_sized)
    yield from _wanted_findings(found.result.findings, request)
    native: tuple[Finding, ...] = ()
    if isinstance(sample, Sample) and case in request.plan.open_sized and found.is_right:
        native = wrong_natively(sample)
        yield from _wanted_findings(native, request)
    if isinstance(sample, NoSample):
        return
    state, counter = CaseState(last=sample, entries=has_entries(sample)), sample.problem.counter
    state.add(Family.GRADCHECK, found.result)
    if native:
        state.add(Family.PRECISION, CheckResult(native, Outcome.FAILED))
    state.evaluations, state.points = Evaluations(counter.forward, counter.backward), int(found.judged)
    state.swept = Swept(sizes=(case.id,) if found.judged else ())
    yield case_verified(case, state)


def _across_cases(request: Verify, live: Live, reader: Reader | None) -> Iterator[Event]:
    """Let calls of different cases overlap: what one of them keeps must not reach another."""
    samples = _samples(request, live, (*request.plan.cases, *request.plan.open_sized)[:MOST_CASES], reader)
    unlisted: list[Sample] = []
    if request.settings.device == "cpu":  # at sizes that nobody listed a kernel may leave its tensors
        unlisted = _samples(request, live, request.plan.spares[:1], reader)
    if len(samples) + len(unlisted) < 2 or not samples:
        return
    yield CaseStarted(samples[0].case.id, Point.TYPICAL, 0)
    varied = overlapping_cases(samples, unlisted)
    yield from _wanted_findings(varied.findings, request)
    every = (*samples, *unlisted)
    counters = [sample.problem.counter for sample in every]
    evaluations = Evaluations(sum(c.forward for c in counters), sum(c.backward for c in counters))
    state = CaseState(evaluations=evaluations, swept=varied.swept)
    yield case_verified(replace(samples[0].case, id=" with ".join(s.case.id for s in every)), state)


def _samples(request: Verify, live: Live, cases: Sequence[Case], reader: Reader | None) -> list[Sample]:
    """The first typical draw of each case that forward takes."""
    built = [build_subject(request, live, case, reader) for case in cases]
    prepared = [prepare(*one, Point.TYPICAL, 0) for one in built if not isinstance(one, Finding)]
    return [sample for sample in prepared if isinstance(sample, Sample)]


def _past_constants(
    request: Verify, live: Live, reader: Reader | None, wanted: frozenset[Family]
) -> Iterator[Event]:
    """Cases past the constants of the source; what is not asked for is not told of them either."""
    for beyond in request.plan.beyond:
        usual = next(c for c in request.plan.cases if c.options == beyond.case.options)
        built = build_subject(request, live, beyond.case, reader)
        if isinstance(built, Finding):
            yield BeyondStarted(beyond)
            yield BeyondJudged("the module cannot be built")
            continue
        for event in judge_beyond(*built, beyond, wanted, usual):
            if not isinstance(event, Found) or is_wanted(
                event.finding.code, request.settings, request.ignored
            ):
                yield event


def _verify_case(
    subject: Subject,
    case: Case,
    request: Verify,
    told: Sequence[Finding],
    note: Callable[[Sample], None],
    evidence: Evidence,
    *,
    old_style_class: bool,
) -> Iterator[Event]:
    state, wanted = CaseState(), wanted_families(request.settings, request.ignored)
    for point, draw in points_of(case, request.settings.effort):
        if not is_declared(point, draw):
            if _stands_so_far(state, subject):
                yield from _at_undeclared(subject, case, state, (point, draw), request)
            continue
        yield CaseStarted(case.id, point, draw)
        sample, slow = timed(prepare, subject, case, point, draw)
        yield from evidence(subject, case, request, asked=slow and state.points == 0)
        if isinstance(sample, NoSample):
            if sample.no_gradient:
                yield case_verified(case, state, no_gradient=True)
                return
            native = _natively(subject, case, state, (point, draw), sample, wanted)
            if native is not None:
                yield from _wanted_findings(native.findings, request)
                break
            yield from _wanted_findings(sample.findings, request)
            failed = any(f.severity is Severity.ERROR for f in sample.findings)
            state.outcomes[Family.GRADCHECK] = Outcome.FAILED if failed else Outcome.INCONCLUSIVE
            break
        state.last = sample
        watch_kernels()  # those of a module that forward has imported
        results, not_judged = run_checks(sample, wanted)
        if not_judged and not_judged not in state.remarks:
            state.remarks.append(not_judged)
        if old_style_class and state.points == 0:
            results[Family.CONTRACT] = _with(results[Family.CONTRACT], old_style(sample))
        results = guarded(sample, results, told)
        for family, result in results.items():
            state.add(family, result)
            yield from _wanted_findings(result.findings, request)
        state.add_point(sample, results)
        note(sample)
    yield from _wanted_findings(never_judged(state), request)
    yield case_verified(case, state)


def _early_evidence(subject: Subject, case: Case, request: Verify, *, asked: bool) -> Iterator[Event]:
    """Whether backward is certainly wrong. A sample of its own counts the calls: a clock decides on this."""
    wanted = asked and is_wanted("GV101", request.settings, request.ignored)
    if wanted and subject.settings.engine is not Engine.TORCH:
        finding = contradicted(prepare(subject, case, Point.TYPICAL, 0))
        if finding is not None:
            yield Contradicted(finding)


def _no_evidence(subject: Subject, case: Case, request: Verify, *, asked: bool) -> Iterator[Event]:  # noqa: ARG001
    """Nothing before the checks: what was guessed may make a difference, and one case is enough."""
    return iter(())


def _natively(
    subject: Subject,
    case: Case,
    state: CaseState,
    where: tuple[Point, int],
    refused: NoSample,
    wanted: frozenset[Family],
) -> CheckResult | None:
    """What native dtypes say of a forward that raised in float64; None where they say nothing."""
    code = "GV001" if subject.inferred else "GV002"
    raised = next((f.raised for f in refused.findings if f.code == code), None)
    if raised is None or Family.PRECISION not in wanted or where != (Point.TYPICAL, 0):
        return None
    judged = refusing_float64(subject, case, *where, raised)
    if judged is None:
        return None
    sample, result = judged
    counter = sample.problem.counter
    state.evaluations += Evaluations(counter.forward, counter.backward)
    state.points += 1
    state.add(Family.PRECISION, result)
    state.transforms |= dict(result.capabilities)
    return result


def _stands_so_far(state: CaseState, subject: Subject) -> bool:
    """Whether values that nobody declared can add anything.

    They cannot where backward is wrong anyway, is not meant to be the derivative, or is torch's to judge.
    """
    verified = state.outcomes[Family.GRADCHECK] in {Outcome.PASSED, Outcome.INCONCLUSIVE}
    contract = state.outcomes[Family.CONTRACT] is not Outcome.FAILED
    return verified and contract and subject.surrogate is None and subject.settings.engine is not Engine.TORCH


def _at_undeclared(
    subject: Subject, case: Case, state: CaseState, where: tuple[Point, int], request: Verify
) -> Iterator[Event]:
    """Judge one undeclared draw; where forward refuses it or nothing can be measured, it is no point.

    Of inferred inputs only the options are guarded here: backward is the derivative at moderate values.
    """
    if subject.inferred and state.outcomes[Family.GRADCHECK] is not Outcome.PASSED:
        return
    yield CaseStarted(case.id, *where)
    sample = prepare(subject, case, *where)
    if isinstance(sample, NoSample):
        return
    found = at_undeclared(sample)
    if found.judged:
        state.swept = state.swept.joined(branches_seen(sample))
    counter = sample.problem.counter
    state.evaluations += Evaluations(counter.forward, counter.backward)
    state.points += found.judged
    result = with_given_options(sample, found.result) if subject.inferred else found.result
    state.add(Family.GRADCHECK, result)
    yield from _wanted_findings(result.findings, request)


def _wanted_findings(findings: Sequence[Finding], request: Verify) -> Iterator[Event]:
    for finding in findings:
        if is_wanted(finding.code, request.settings, request.ignored):
            yield Found(finding)


def _with(result: CheckResult, more: CheckResult) -> CheckResult:
    return replace(result, findings=(*result.findings, *more.findings))
