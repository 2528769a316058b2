"""One target over its samples: the declared draws of each listed case, then what nobody declared.

An error at a declared sample fails; at another one only what is certain is reported. What is asked at each
sample is in `table`; the samples that no case lists, at other sizes, say, are in `beside`.

A target that computes in 16 or 8 bits inside has its formula checked in float64, then its rounding. That is
seen by the dtypes of its operations, and asked for only where something would be reported: no mode runs
around a target that is right without one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from gradverify.events import CaseStarted, Event, Found
from gradverify.model import Case, Effort, Engine, Finding, Outcome, Point, Severity
from gradverify.model.case import is_declared, points_of, strata_points, whole_points
from gradverify.rules import Family
from gradverify.verifier.guard.raised_errors import is_bound_nowhere
from gradverify.verifier.interpreter.launches import watch_kernels
from gradverify.verifier.neighbours.guesses import guarded, unless_unseen
from gradverify.verifier.questions.again import read_unwritten
from gradverify.verifier.questions.contract import old_style
from gradverify.verifier.questions.findings import CheckResult
from gradverify.verifier.questions.orders import backward_raised
from gradverify.verifier.questions.results import at_undeclared
from gradverify.verifier.questions.subject import NoSample, Sample, Subject, prepare
from gradverify.verifier.questions.witnessing import options_of, witnesses_of
from gradverify.verifier.verify.beside import beside_the_listed
from gradverify.verifier.verify.case_state import CaseState
from gradverify.verifier.verify.kept import Place
from gradverify.verifier.verify.table import Results, ask
from gradverify.verifier.verify.verification import Verification, disagreements
from gradverify.verifier.witnesses.rounding import SIXTEEN_BITS

OPEN = frozenset({Outcome.FAILED, Outcome.INCONCLUSIVE})
"""Outcomes that rounding inside may have caused."""

OF_ROUNDING = frozenset({"GV101", "GV106", "GV110", "GV201", "GV202"})
"""Codes of numbers that rounding inside may have made."""


def verified(asked: Verification) -> Iterator[Event]:
    """Verify a target at all its samples; findings are sent as they are made."""
    for case in asked.request.plan.cases:
        yield from asked.deciding(case)
        built = asked.build(case)
        if isinstance(built, Finding):
            yield Found(built)
        else:
            yield from asked.noted(_listed_case(asked, case, *built), case)
    yield from beside_the_listed(asked)


def _listed_case(asked: Verification, planned: Case, subject: Subject, case: Case) -> Iterator[Event]:
    """Judge every draw of a case; `case` is the planned one with what a module has added to it."""
    state = CaseState()
    for point, draw in draws_of(subject, case):
        if not is_declared(point, draw):
            if _can_add_something(state, subject, point):
                yield from _at_undeclared(asked, subject, case, state, (point, draw))
            continue
        yield CaseStarted(case.id, point, draw)
        sample = prepare(subject, case, point, draw)
        if isinstance(sample, NoSample):
            if sample.no_gradient:
                yield state.verified(case, no_gradient=True)
                return
            failed = any(f.severity is Severity.ERROR for f in sample.findings)
            outcome = Outcome.FAILED if failed else Outcome.INCONCLUSIVE
            state.add(Family.GRADCHECK, CheckResult(outcome=outcome))
            yield from asked.reported(sample.findings)
            break
        yield from asked.reported(_at_declared(asked, sample, state))
        state.applied |= asked.applied(sample)
        subject = replace(subject, short=asked.live.kept.short)
        asked.live.kept.samples[Place(planned, point, draw)] = state.last or sample
        if not (subject.inferred or sample.is_native):
            state.note_values(sample)
    yield from asked.reported(state.without_value())
    yield from asked.reported(state.never_judged())
    yield state.verified(case)


def draws_of(subject: Subject, case: Case) -> tuple[tuple[Point, int], ...]:
    """Draws of a case: the declared ones, and at the first with its options what nobody declared.

    Of inputs that a spec declares each part of a range as well, and whole tensors beyond it.
    """
    effort = subject.settings.effort
    draws = points_of(case, effort)
    if subject.inferred or subject.native or subject.surrogate is not None:
        return draws
    declared = tuple(d for d in draws if is_declared(*d))
    if not subject.is_first_of_options:
        return declared
    if effort is Effort.QUICK:
        return draws
    return tuple(dict.fromkeys((*declared, *strata_points(case), *draws, *whole_points(case))))


def _at_declared(asked: Verification, sample: Sample, state: CaseState) -> Iterator[Finding]:
    """What is found at a declared draw."""
    yield from _shared_values(sample, state)
    watch_kernels()  # those of a module that forward has imported
    results, left_out = ask(sample, asked.wanted)
    in_float64 = carried_out_in_float64(sample, results, asked.wanted)
    if in_float64 is not None:
        whole = has_short_values(sample)
        sample, results, left_out = in_float64
        asked.live.kept.short = sample.subject.short
        if sample.subject.short:
            yield computes_in(sample, results) if whole else keeps_in(sample, results)
    if left_out:
        state.remarks[left_out] = None
    results = {family: guarded(sample, result, asked.excuses) for family, result in results.items()}
    results[Family.GRADCHECK] = unless_unseen(sample, results[Family.GRADCHECK])
    for result in results.values():
        yield from result.findings
    if asked.is_old_style and state.points == 0 and sample.subject.is_base:
        yield old_style(sample)
    state.add_point(sample, results)
    yield from _shared_values(sample, state)


def _shared_values(sample: Sample, state: CaseState) -> Iterator[Finding]:
    """What ranks were seen to disagree on: it fails the contract, whatever else is right."""
    for finding in disagreements(sample):
        state.outcomes[Family.CONTRACT] = Outcome.FAILED
        yield finding


def _can_add_something(state: CaseState, subject: Subject, point: Point) -> bool:
    """Whether undeclared values can.

    They cannot where backward is wrong anyway, or is torch's to judge. Of inferred inputs backward must be
    the derivative at moderate values. Where it is what a composite stands for that is declared as its
    surrogate, either side of a kink may be meant: at zeros and ties nothing is asked.
    """
    if subject.surrogate is not None:
        declared = subject.surrogate.function is not None and not subject.native
        return point is Point.WIDE and declared and state.outcomes[Family.REFERENCE] is Outcome.PASSED
    first = state.outcomes[Family.PRECISION if subject.native else Family.GRADCHECK]
    verified = first is Outcome.PASSED or (first is Outcome.INCONCLUSIVE and not subject.inferred)
    is_ours = subject.settings.engine is not Engine.TORCH
    return verified and is_ours and state.outcomes[Family.CONTRACT] is not Outcome.FAILED


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
    state.points += found.judged
    result = guarded(sample, found.result, asked.excuses)
    if found.raised is not None and is_bound_nowhere(found.raised):
        result = CheckResult((backward_raised(sample, found.raised),), Outcome.FAILED)
    state.add(sample.family if subject.surrogate is None else Family.REFERENCE, result)
    yield from asked.reported(result.findings)
    if where[0] is Point.SPECIAL and _has_integers(sample) and result.outcome is not Outcome.FAILED:
        unwritten = guarded(sample, CheckResult.of(*read_unwritten(sample)), asked.excuses)
        state.add(Family.CONTRACT, unwritten)
        yield from asked.reported(unwritten.findings)
    state.count_calls(sample)


def _has_integers(sample: Sample) -> bool:
    """Whether tensors of integers are passed to one process: places most often, and nearly all one here."""
    values = (a.value for a in sample.arguments if isinstance(a.value, torch.Tensor))
    return sample.subject.across is None and any(not v.is_floating_point() for v in values)


def carried_out_in_float64(
    sample: Sample, results: Results, wanted: frozenset[Family]
) -> tuple[Sample, Results, str] | None:
    """The sample with short operations in float64, its results, and what was not judged.

    None where nothing is wrong or open, or no operation is short. Where they cannot be carried out in float64
    (what they are quantised to, or the bits of a number, is part of the formula), nothing can be told.
    """
    subject = sample.subject
    is_torch = subject.settings.engine is Engine.TORCH
    if subject.short or sample.is_native or subject.surrogate or subject.across or is_torch:
        return None
    if not any(result.outcome in OPEN or result.uncovered for result in results.values()):
        return None
    seen = witnesses_of(sample).of(sample).met & SIXTEEN_BITS
    if not (seen and sample.inputs.is_double and sample.problem.outputs.is_double):
        return None
    coarsest = min(seen, key=_fineness)
    short = str(coarsest).removeprefix("torch.")
    if coarsest.is_floating_point:
        long = prepare(replace(subject, short=short), sample.case, sample.point, sample.draw)
        if isinstance(long, Sample):
            return (long, *ask(long, wanted))
    return sample, {family: _untold(sample, result, short) for family, result in results.items()}, ""


def _fineness(dtype: torch.dtype) -> float:
    """Sorts the coarsest format first, integers before it."""
    return -torch.finfo(dtype).eps if dtype.is_floating_point else -torch.inf


def has_short_values(sample: Sample) -> bool:
    """Whether what forward returns went through 16 bits or fewer, not what it keeps for backward alone."""
    return bool((options_of(sample).formats or frozenset()) & SIXTEEN_BITS)


def keeps_in(sample: Sample, results: Results) -> Finding:
    """Where backward alone has few digits: whether that is meant only the author can say."""
    short = sample.subject.short
    if short in sample.subject.dtypes or results[Family.GRADCHECK].outcome is not Outcome.PASSED:
        return computes_in(sample, results)
    said = (
        f"forward returns all digits of float64, and keeps numbers in {short} for backward: with every "
        f"operation in float64 the gradient is right, and as it is it has the digits of {short} alone"
    )
    hint = (
        f"Keep them in the dtype of the inputs, or write `dtypes: [{short}]` where so few digits are meant."
    )
    return sample.finding("GV109", said, hint=hint)


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
