"""Cases in, events out: the same code serves the worker process and the Python API.

A target that computes in 16 or 8 bits inside: its formula in float64, then its rounding.

Seen by the dtypes of its operations, and asked for only where something would be reported: no mode runs
around a target that is right without one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace

import torch

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
    Effort,
    Engine,
    Finding,
    Outcome,
    Point,
    Severity,
)
from gradverify.model.case import is_declared, points_of, strata_points, whole_points
from gradverify.rules import Family
from gradverify.verifier import guard
from gradverify.verifier.building import Live
from gradverify.verifier.case_state import CaseState, branches_seen
from gradverify.verifier.checks.contract import old_style
from gradverify.verifier.checks.first_order import backward_raised
from gradverify.verifier.checks.kept import Allowance, Place
from gradverify.verifier.checks.result import CheckResult
from gradverify.verifier.checks.samples import prepare
from gradverify.verifier.checks.subject import NoSample, Sample, Subject
from gradverify.verifier.diagnose import is_diagnosed, wants_a_change
from gradverify.verifier.extra_cases import extra_cases
from gradverify.verifier.families import run_checks
from gradverify.verifier.guard import NotJudgedError
from gradverify.verifier.interpreter.launches import watch_kernels
from gradverify.verifier.neighbours.guesses import guarded, guarded_at_undeclared
from gradverify.verifier.neighbours.meant import hangs_on_no_guess
from gradverify.verifier.numerics.problem import Block
from gradverify.verifier.numerics.tracing import short_format
from gradverify.verifier.ranks.world import OutOfStepError
from gradverify.verifier.verification import Verification, disagreements, not_judged, out_of_step, verifying
from gradverify.verifier.verify.results import at_undeclared, values_at

OPEN = frozenset({Outcome.FAILED, Outcome.INCONCLUSIVE})
"""Outcomes that rounding inside may have caused."""

OF_ROUNDING = frozenset({"GV101", "GV106", "GV110", "GV201", "GV202"})
"""Codes of numbers that rounding inside may have made."""

Results = dict[Family, CheckResult]


def carried_out_in_float64(
    sample: Sample, results: Results, wanted: frozenset[Family]
) -> tuple[Sample, Results, str] | None:
    """The sample with short operations in float64, its results, and what was not judged.

    None where nothing is wrong or open, or no operation is short. Where they cannot be carried out in float64
    (what they are quantised to, or the bits of a number, is part of the formula), nothing can be told.
    """
    subject = sample.subject
    asked = (
        subject.surrogate is None and subject.across is None and subject.settings.engine is not Engine.TORCH
    )
    if subject.short or sample.is_native or not asked or not any(map(_is_open, results.values())):
        return None
    doubles = all(b.dtype in {torch.float64, torch.complex128} for b in _blocks(sample))
    short = short_format(sample.problem) if doubles else ""
    if not short:
        return None
    if getattr(torch, short).is_floating_point:
        long = prepare(replace(subject, short=short), sample.case, sample.point, sample.draw)
        if isinstance(long, Sample):
            return (long, *run_checks(long, wanted))
    return sample, {family: _untold(sample, result, short) for family, result in results.items()}, ""


def computes_in(sample: Sample, results: Results) -> Finding:
    """The note that says how it was verified."""
    short = sample.subject.short
    held = results[Family.PRECISION].outcome is Outcome.PASSED
    return sample.finding(
        "GV104",
        f"forward computes in {short} inside: its derivatives were checked with every operation in float64",
        hint=f"What it returns itself was {'held to the rounding of' if held else 'not judged in'} {short}.",
        severity=Severity.NOTE,
    )


def _untold(sample: Sample, result: CheckResult, short: str) -> CheckResult:
    """The same where rounding to a short format may be what is wrong with the numbers: inconclusive."""
    numbers = {f.code for f in result.findings if f.severity is Severity.ERROR}
    if not numbers or not numbers <= OF_ROUNDING:
        return result
    said = f"forward computes in {short} inside, and nothing tells what that rounds from a mistake"
    kept = tuple(f for f in result.findings if f.code not in numbers)
    hint = "Name a composite of plain torch operations as `reference:`, or declare a surrogate gradient."
    told = sample.finding("GV109", said, hint=hint)
    return replace(result, findings=(*kept, told), outcome=Outcome.INCONCLUSIVE)


def _is_open(result: CheckResult) -> bool:
    return result.outcome in OPEN or bool(result.uncovered)


def _blocks(sample: Sample) -> tuple[Block, ...]:
    return (*sample.inputs.blocks, *sample.problem.outputs.blocks)


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
    if any(is_diagnosed(f) or wants_a_change(f) for f in asked.findings):
        from gradverify.verifier.diagnose.findings import causes_of  # noqa: PLC0415 - where one failed

        yield DiagnosisStarted()
        causes = causes_of(request.plan, asked.build, live.kept, asked.visited, asked.findings)
        yield from map(Found, causes)
        if allowance.is_short:
            yield AllowanceSpent(allowance.calls)


def _listed_case(asked: Verification, planned: Case, subject: Subject, case: Case) -> Iterator[Event]:
    """Judge every point of a case; `case` is the planned one with what a module has added to it."""
    state = CaseState()
    for point, draw in _draws(subject, case):
        if not is_declared(point, draw):
            if _can_add_something(state, subject) or (point is Point.WIDE and _is_as_meant(state, subject)):
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
        if not (subject.inferred or sample.is_native):
            state.note_values(sample, values_at(sample))
    yield from asked.reported(state.without_value())
    yield from asked.reported(state.never_judged())
    yield state.verified(case)


def draws_of(case: Case, effort: Effort, *, is_first: bool) -> tuple[tuple[Point, int], ...]:
    """Declared draws of a case; where it is the first with its options, those that nobody declared, too."""
    draws = points_of(case, effort)
    declared = tuple(d for d in draws if is_declared(*d))
    if not is_first:
        return declared
    if effort is Effort.QUICK:
        return draws
    return tuple(dict.fromkeys((*declared, *strata_points(case), *draws, *whole_points(case))))


def _draws(subject: Subject, case: Case) -> tuple[tuple[Point, int], ...]:
    """Of inputs that a spec declares, each part of a range as well, and whole tensors beyond it."""
    effort = subject.settings.effort
    if subject.inferred or subject.native or subject.surrogate is not None:
        return points_of(case, effort)
    return draws_of(case, effort, is_first=subject.is_first_of_options)


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
    results = guarded(sample, results, asked.findings, asked.excuses)
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


def _is_as_meant(state: CaseState, subject: Subject) -> bool:
    """Whether backward is what a composite stands for that is declared as its surrogate.

    At special values, zeros and ties, either side of a kink may be meant.
    """
    declared = subject.surrogate is not None and subject.surrogate.function is not None
    return declared and not subject.native and state.outcomes[Family.REFERENCE] is Outcome.PASSED


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
    state.add(sample.family if subject.surrogate is None else Family.REFERENCE, result)
    yield from asked.reported(result.findings)
