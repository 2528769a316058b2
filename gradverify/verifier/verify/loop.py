"""One target over its samples: the declared draws of each listed case, then what nobody declared.

An error at a declared sample fails; at another one only what is certain is reported. What is asked at each
sample is in `table`; the samples that no case lists, at other sizes, say, are in `beside`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gradverify.events import CaseStarted, Event, Found
from gradverify.model import Case, Effort, Engine, Finding, Outcome, Point, Severity
from gradverify.model.case import is_declared, points_of, strata_points, whole_points
from gradverify.rules import Family
from gradverify.verifier.guard.raised_errors import is_bound_nowhere
from gradverify.verifier.interpreter.launches import watch_kernels
from gradverify.verifier.neighbours.guesses import guarded, unless_unseen
from gradverify.verifier.questions.contract import old_style
from gradverify.verifier.questions.findings import CheckResult
from gradverify.verifier.questions.orders import backward_raised
from gradverify.verifier.questions.results import at_undeclared
from gradverify.verifier.questions.subject import NoSample, Sample, Subject, prepare
from gradverify.verifier.verify.beside import beside_the_listed
from gradverify.verifier.verify.case_state import CaseState
from gradverify.verifier.verify.disagreements import disagreements
from gradverify.verifier.verify.kept import Place
from gradverify.verifier.verify.short_inside import carried_out_in_float64, computes_in
from gradverify.verifier.verify.table import ask
from gradverify.verifier.verify.verification import Verification


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
            state.outcomes[Family.GRADCHECK] = Outcome.FAILED if failed else Outcome.INCONCLUSIVE
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
        sample, results, left_out = in_float64
        asked.live.kept.short = sample.subject.short
        if sample.subject.short:
            yield computes_in(sample, results)
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
    state.count_calls(sample)
    state.points += found.judged
    result = guarded(sample, found.result, asked.excuses)
    if found.raised is not None and is_bound_nowhere(found.raised):
        result = CheckResult((backward_raised(sample, found.raised),), Outcome.FAILED)
    state.add(sample.family if subject.surrogate is None else Family.REFERENCE, result)
    yield from asked.reported(result.findings)
