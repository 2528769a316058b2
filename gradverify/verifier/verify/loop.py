"""The loop over the samples of a target: the same for the command, the Python API, notebooks and pytest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from gradverify.events import BeyondJudged, BeyondStarted, CaseStarted, Event, Found, Verify
from gradverify.model import Case, CasePoint, Finding, Outcome, Point, Severity, Swept
from gradverify.model.case import is_declared
from gradverify.rules import Family, rule
from gradverify.verifier.building import Live, build_subject
from gradverify.verifier.checks.contract import contract, old_style, stops_judgement
from gradverify.verifier.checks.first_order import refused_empty
from gradverify.verifier.checks.precision.alone import NATIVE, ORDER
from gradverify.verifier.checks.result import CheckResult, FirstOrder
from gradverify.verifier.checks.samples import prepare
from gradverify.verifier.checks.subject import (
    Float64,
    Native,
    NoSample,
    Sample,
    Subject,
    Surrogate,
    first_line,
)
from gradverify.verifier.checks.wording import invented, output_name
from gradverify.verifier.guard import NotJudgedError
from gradverify.verifier.numerics.problem import Graph
from gradverify.verifier.ranks.world import OutOfStepError
from gradverify.verifier.verification import Verification, disagreements, not_judged, out_of_step, verifying
from gradverify.verifier.verify.orders import First, ask_first, ask_second
from gradverify.verifier.verify.reference import ask_reference, ask_surrogate
from gradverify.verifier.verify.samples import Kind, Planned, planned
from gradverify.verifier.verify.state import CaseState
from gradverify.verifier.verify.structured import wrong_with_structure
from gradverify.verifier.verify.witnessing import Witnesses, other_values

UNSTEADY = (
    "forward gives other values at the same inputs",
    "Draw random numbers from torch's, NumPy's or Python's global generator, which are replayed for each "
    "call, or take them as an input. What it reads beside its inputs must not change from call to call.",
)


@dataclass
class Loop:
    """One target while it is verified."""

    asked: Verification
    witnesses: Witnesses = field(default_factory=Witnesses)
    precision: dict[object, Float64 | Native] = field(default_factory=dict)
    unsteady: set[object] = field(default_factory=set)
    """Combinations of options at which forward is another each time: nothing else is asked there."""
    failed: bool = False
    open: bool = False

    @property
    def request(self) -> Verify:
        """What was asked for."""
        return self.asked.request


def verify(request: Verify, live: Live) -> Iterator[Event]:
    """Verify a target on its cases; findings are sent as they are made."""
    with verifying(request, live) as asked:
        live.kept.begin()
        loop = Loop(asked)
        try:
            for one in planned(request.plan, request.settings.effort):
                yield from _case(loop, one) if one.beyond is None else _beyond(loop, one)
        except OutOfStepError as error:
            yield from asked.reported([out_of_step(error, _last(asked))])
        except NotJudgedError as error:
            yield from asked.reported([not_judged(error, _last(asked))])


def _last(asked: Verification) -> CasePoint | None:
    return asked.visited[-1].where if asked.visited else None


def _case(loop: Loop, one: Planned) -> Iterator[Event]:
    """Every draw of a planned case."""
    if one.kind is not Kind.LISTED and (loop.failed or loop.open):
        return
    if one.case.options in loop.unsteady:
        return
    yield CaseStarted(one.case.id, *one.draws[0])
    built = _built(loop, one.case)
    if isinstance(built, Finding):
        if one.kind is Kind.LISTED:
            yield from _found(loop, [built], None)
        return
    subject, case = built
    state = CaseState(compiled=subject.operator is not None and subject.reader is None)
    if one.beyond is not None:
        yield BeyondStarted(one.beyond)
    for point, draw in one.draws:
        if not is_declared(point, draw) and (loop.failed or loop.open):
            continue
        if point is not Point.TYPICAL or draw:
            yield CaseStarted(one.case.id, point, draw)
        keep: list[Graph] = []
        if subject.reader is not None:
            subject.reader.reset()
        sample = prepare(subject, case, point, draw, keep)
        if isinstance(sample, NoSample):
            if sample.no_gradient:
                yield state.verified(case, no_gradient=True)
                return
            if one.kind is Kind.LISTED and is_declared(point, draw):
                failed = any(f.severity is Severity.ERROR for f in sample.findings)
                state.worsen(Family.GRADCHECK, Outcome.FAILED if failed else Outcome.INCONCLUSIVE)
                yield from _found(loop, sample.findings, state)
                break
            continue
        yield from _found(loop, _at(loop, one, sample, keep[0], state), state)
        state.points += 1
        state.count(sample)
        if one.case.options in loop.unsteady:
            break
    if one.kind is Kind.LISTED:
        yield from _found(loop, state.never_judged(), state)
        yield state.verified(case)
    elif one.beyond is not None:
        yield BeyondJudged("" if state.points else "forward raises there")
    else:
        state.swept = Swept(sizes=(case.id,) if state.points and one.kind is Kind.OPEN else ())
        yield state.verified(case)


def _beyond(loop: Loop, one: Planned) -> Iterator[Event]:
    """A case past a constant; what is wrong where sizes lose their order must be so where they keep it."""
    events = list(_case(loop, one))
    found = any(isinstance(event, Found) for event in events)
    if not found or one.beyond is None or one.beyond.in_order is None:
        yield from events
        return
    loop.failed = loop.open = False
    for case in one.beyond.in_order:
        kept = list(_case(loop, replace(one, case=case)))
        if any(isinstance(event, Found) for event in kept):
            yield from kept
            return
    yield BeyondStarted(one.beyond)
    yield BeyondJudged("sizes that are larger than others in every listed case are not, there")


def _built(loop: Loop, case: Case) -> tuple[Subject, Case] | Finding:
    """The target ready to be called, in the precision that it takes with these options."""
    asked = loop.asked
    built = build_subject(loop.request, asked.live, case, asked.reader)
    if isinstance(built, Finding):
        return built
    subject, full = built
    known = loop.precision.get(case.options)
    if known is None:
        known = loop.precision[case.options] = _precision(subject, full)
    return replace(subject, precision=known), full


def _precision(subject: Subject, case: Case) -> Float64 | Native:
    """Float64 where forward takes it; else the first dtype that it takes, and why."""
    sample = prepare(subject, case, Point.TYPICAL, 0)
    if isinstance(sample, Sample) or sample.raised is None:
        return Float64()
    why = f"forward raises {sample.raised.type}: {first_line(sample.raised.message)}"
    for dtype in tuple(d for d in subject.dtypes if d in NATIVE) or ORDER:
        there = prepare(replace(subject, precision=Native(dtype, why)), case, Point.TYPICAL, 0)
        if isinstance(there, Sample) and there.is_native:
            return Native(dtype, why)
    return Float64()


def _at(loop: Loop, one: Planned, sample: Sample, graph: Graph, state: CaseState) -> Iterator[Finding]:
    """What is found at one sample."""
    yield from disagreements(sample)
    declared = is_declared(sample.point, sample.draw) and one.kind in {Kind.LISTED, Kind.OPEN}
    if sample.disconnected:
        state.worsen(Family.GRADCHECK, Outcome.FAILED)
        yield _disconnected(sample)
        return
    known = loop.witnesses.of(sample)
    if known.formats is None and other_values(sample, graph, known):
        loop.unsteady.add(sample.case.options)
        state.worsen(Family.GRADCHECK, Outcome.INCONCLUSIVE)
        yield sample.finding("GV109", f"no gradient could be verified: {UNSTEADY[0]}", hint=UNSTEADY[1])
        return
    surrogate = sample.subject.surrogate
    if surrogate is not None:
        yield from ask_surrogate(sample, graph, state)
        if not surrogate.inputs:
            return
    prove = one.kind is Kind.LISTED and (sample.point, sample.draw) == (Point.TYPICAL, 0)
    empty = refused_empty(sample) if not (sample.inputs.size and sample.problem.outputs.size) else None
    if empty is not None:
        first = First(None, None, empty.result.findings, empty.result.outcome)  # type: ignore[arg-type]
    else:
        first = ask_first(
            sample,
            graph,
            loop.witnesses,
            declared=declared,
            listed=declared and one.kind is Kind.LISTED,
            prove=prove,
        )
    yield from _of_first(loop, one, sample, first, state, declared=declared)
    if not declared or one.kind is not Kind.LISTED:
        return
    shim = FirstOrder(
        CheckResult(first.findings, first.outcome), proven=first.verified, single_precision=known.is_short
    )
    held = contract(sample, shim)
    state.worsen(Family.CONTRACT, held.outcome)
    yield from held.findings
    if loop.asked.is_old_style and loop.asked.is_first(sample.case) and not state.points:
        yield old_style(sample)
    if first.verified and sample.subject.reference is not None and not stops_judgement(held):
        yield from ask_reference(sample, graph, state, first.visible)
    once = one.is_first and (sample.point, sample.draw) == (Point.TYPICAL, 0)
    special = one.is_first and sample.point is Point.SPECIAL
    if (once or special) and first.verified and first.asked is not None and loop.asked.wants("GV106"):
        for finding in wrong_with_structure(sample, first.asked, smooth=once):
            failed = finding.severity is Severity.ERROR
            state.worsen(Family.GRADCHECK, Outcome.FAILED if failed else Outcome.NOT_RUN)
            yield finding
    wanted = Family.GRADGRADCHECK in loop.asked.wanted
    afar = (
        one.is_first and sample.point is not Point.TYPICAL
    )  # a branch of the double backward may begin there
    if (once or afar) and wanted and first.verified and not stops_judgement(held):
        second = ask_second(sample, first, loop.witnesses)
        state.worsen(Family.GRADGRADCHECK, second.outcome)
        state.double_backward = second.double_backward if once else state.double_backward
        yield from second.findings if once else (f for f in second.findings if f.severity is Severity.ERROR)


def _of_first(
    loop: Loop, one: Planned, sample: Sample, first: First, state: CaseState, *, declared: bool
) -> Iterator[Finding]:
    typical = sample.point is Point.TYPICAL and declared
    surrogate = sample.subject.surrogate
    if surrogate is not None:
        first = without_surrogates(sample, first, surrogate)
    if first.judgement is not None:
        state.add(sample, first.judgement, typical=typical)
    outcome = first.outcome
    findings: Iterable[Finding] = first.findings
    if one.kind is Kind.DEGENERATE:
        findings = [
            replace(f, severity=Severity.WARNING) if f.severity is Severity.ERROR else f for f in findings
        ]
        outcome = Outcome.PASSED
    if one.kind is Kind.BEYOND and one.beyond is not None and one.beyond.declared:
        findings = [_past(f, one) for f in findings]
    if loop.request.inferred:
        findings = [invented(f, ["the inputs"]) if f.severity is Severity.ERROR else f for f in findings]
    state.worsen(Family.GRADCHECK, outcome)
    yield from findings


def without_surrogates(sample: Sample, first: First, surrogate: Surrogate) -> First:
    """The first order without the inputs whose gradient is declared to be another."""
    names = sample.problem.input_names
    kept = tuple(f for f in first.findings if not surrogate.covers(f.input))
    outcome = first.outcome if kept or first.outcome is Outcome.PASSED else Outcome.PASSED
    judgement = first.judgement
    if judgement is not None:
        answers = {p: a for p, a in judgement.answers.items() if not surrogate.covers(names[p[1]])}
        judgement = replace(judgement, answers=answers)
    return replace(first, findings=kept, judgement=judgement, outcome=outcome)


def _past(finding: Finding, one: Planned) -> Finding:
    said = f"{finding.message}; but no spec says that {one.case.id} is valid"
    hint = "If it is, list it in the spec's sizes, and this is a mistake; if not, forbid it with `where:`."
    return replace(finding, code="GV109", severity=rule("GV109").severity, message=said, hint=hint)


def _disconnected(sample: Sample) -> Finding:
    names = " and ".join(output_name(p, sample.outputs_returned) for p in sample.disconnected)
    return sample.finding(
        "GV003",
        f"{names} has no gradient: nothing connects it to the inputs",
        hint="Something detaches it (no_grad, .data, .detach(), a call that autograd does not know).",
        output=sample.disconnected[0],
    )


def _found(loop: Loop, findings: Iterable[Finding], state: CaseState | None) -> Iterator[Event]:
    """Those findings that are asked for, as events."""
    for finding in findings:
        if loop.asked.wants(finding.code):
            loop.failed |= finding.severity is Severity.ERROR
            loop.open |= finding.code == "GV109"
            yield Found(finding)
