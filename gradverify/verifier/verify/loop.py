"""The loop over the samples of a target: the same for the command, the Python API, notebooks and pytest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from gradverify.events import BeyondJudged, BeyondStarted, CaseStarted, Event, Found, Verify
from gradverify.model import Case, CasePoint, Finding, Outcome, Point, Severity, Swept
from gradverify.model.case import is_declared
from gradverify.rules import Family, rule
from gradverify.verifier.building import Live, build_subject
from gradverify.verifier.checks.dtypes.deciding import ORDER
from gradverify.verifier.checks.first_order import refused_empty
from gradverify.verifier.checks.samples import prepare
from gradverify.verifier.checks.subject import (
    Float64,
    Native,
    Sample,
    Subject,
    Surrogate,
    first_line,
)
from gradverify.verifier.checks.wording import invented, output_name
from gradverify.verifier.guard import NotJudgedError
from gradverify.verifier.inputs.native_values import NATIVE
from gradverify.verifier.numerics.problem import Graph
from gradverify.verifier.ranks.world import OutOfStepError
from gradverify.verifier.verification import Verification, disagreements, not_judged, out_of_step, verifying
from gradverify.verifier.verify.orders import First, ask_first
from gradverify.verifier.verify.reference import ask_surrogate
from gradverify.verifier.verify.samples import Kind, Planned, planned
from gradverify.verifier.verify.state import CaseState
from gradverify.verifier.verify.table import At, as_kind, asked_at
from gradverify.verifier.verify.witnessing import Witnesses, other_values

UNSTEADY = "no gradient could be verified: forward gives other values at the same inputs"
REPLAYED = (
    "Draw random numbers from torch's, NumPy's or Python's global generator, which are replayed for each "
    "call, or take them as an input. What it reads beside its inputs must not change from call to call."
)


REPEATS = {"GV103": "GV107", "GV104": "GV110"}
"""Codes of the contract, and those of numbers that say it again."""


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

    @property
    def is_undecided(self) -> bool:
        """Whether something is wrong, or open: what nobody declared would add nothing."""
        return self.failed or self.open


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
    if (one.kind is not Kind.LISTED and loop.is_undecided) or one.case.options in loop.unsteady:
        return
    yield CaseStarted(one.case.id, *one.draws[0])
    built = _built(loop, one.case)
    if isinstance(built, Finding):
        yield from _found(loop, [built] if one.kind is Kind.LISTED else [])
        return
    subject, case = built
    state = CaseState(compiled=subject.operator is not None and subject.reader is None)
    if one.beyond is not None:
        yield BeyondStarted(one.beyond)
    for point, draw in one.draws:
        if not is_declared(point, draw) and loop.is_undecided:
            continue
        yield from _draw(loop, one, (subject, case), (point, draw), state)
        if state.is_over or one.case.options in loop.unsteady:
            break
    yield from _ended(loop, one, case, state)


def _draw(
    loop: Loop, one: Planned, built: tuple[Subject, Case], where: tuple[Point, int], state: CaseState
) -> Iterator[Event]:
    """One draw: what is found at its sample, or why there is none."""
    if where != one.draws[0]:
        yield CaseStarted(one.case.id, *where)
    keep: list[Graph] = []
    if built[0].reader is not None:
        built[0].reader.reset()
    sample = prepare(*built, *where, keep)
    if isinstance(sample, Sample):
        yield from _found(loop, _at(loop, one, sample, keep[0], state))
        state.points += 1
        state.count(sample)
        return
    state.no_gradient = sample.no_gradient
    if sample.no_gradient or (one.kind is Kind.LISTED and is_declared(*where)):
        state.is_over = True
        failed = any(f.severity is Severity.ERROR for f in sample.findings)
        if not sample.no_gradient:
            state.worsen(Family.GRADCHECK, Outcome.FAILED if failed else Outcome.INCONCLUSIVE)
        yield from _found(loop, sample.findings)


def _ended(loop: Loop, one: Planned, case: Case, state: CaseState) -> Iterator[Event]:
    """What all draws of a case add up to."""
    if one.beyond is not None:
        yield BeyondJudged("" if state.points else "forward raises there")
        return
    if one.kind is Kind.LISTED:
        yield from _found(loop, state.never_judged())
    elif state.points and one.kind is Kind.OPEN:
        state.swept = Swept(sizes=(case.id,))
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
    stopped = _stopped(loop, sample, graph)
    if stopped is not None:
        failed = stopped.severity is Severity.ERROR
        state.worsen(Family.GRADCHECK, Outcome.FAILED if failed else Outcome.INCONCLUSIVE)
        yield stopped
        return
    surrogate = sample.subject.surrogate
    if surrogate is not None:
        yield from ask_surrogate(sample, graph, state, loop.witnesses.of(sample))
        if not surrogate.inputs:
            return
    first = _first(loop, one, sample, graph)
    if surrogate is not None:
        first = _without_surrogates(sample, first, surrogate)
    typical = sample.point is Point.TYPICAL and one.kind is Kind.LISTED
    if first.judgement is not None:
        state.add(sample, first.judgement, typical=typical)
    found = [_as_planned(loop, one, f) for f in first.findings]
    failed = any(f.severity is Severity.ERROR for f in found)
    state.worsen(
        Family.GRADCHECK, Outcome.PASSED if first.outcome is Outcome.FAILED and not failed else first.outcome
    )
    more = [*asked_at(At(loop.asked, loop.witnesses, one, sample, graph, state, first))]
    yield from _without_repetitions(found, more)
    yield from more


def _without_repetitions(found: Iterable[Finding], more: Iterable[Finding]) -> Iterator[Finding]:
    """Numerical findings that the contract does not explain: a gradient of a wrong shape counts as None."""
    explained = {(REPEATS[f.code], f.input) for f in more if f.code in REPEATS}
    yield from (f for f in found if (f.code, f.input) not in explained)


def _stopped(loop: Loop, sample: Sample, graph: Graph) -> Finding | None:
    """Why nothing can be asked of a sample."""
    if sample.disconnected:
        return _disconnected(sample)
    known = loop.witnesses.of(sample)
    if known.formats is None and other_values(sample, graph, known):
        loop.unsteady.add(sample.case.options)
        return sample.finding("GV109", UNSTEADY, hint=REPLAYED)
    return None


def _first(loop: Loop, one: Planned, sample: Sample, graph: Graph) -> First:
    """The first order; where there is nothing to measure, forward and backward must run."""
    if not (sample.inputs.size and sample.problem.outputs.size):
        empty = refused_empty(sample)
        if empty is not None:
            return First(None, None, empty.result.findings, empty.result.outcome)
    declared = is_declared(sample.point, sample.draw) and one.kind in {Kind.LISTED, Kind.OPEN}
    listed = declared and one.kind is Kind.LISTED
    prove = listed and (sample.point, sample.draw) == (Point.TYPICAL, 0)
    return ask_first(sample, graph, loop.witnesses, declared=declared, listed=listed, prove=prove)


def _as_planned(loop: Loop, one: Planned, finding: Finding) -> Finding:
    """A finding as it counts at a case of its kind, and on inputs that were inferred."""
    finding = as_kind(finding, one.kind)
    if one.beyond is not None and one.beyond.declared:
        return _past(finding, one)
    if loop.request.inferred and finding.severity is Severity.ERROR:
        return invented(finding, ["the inputs"])
    return finding


def _without_surrogates(sample: Sample, first: First, surrogate: Surrogate) -> First:
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


def _found(loop: Loop, findings: Iterable[Finding]) -> Iterator[Event]:
    """Those findings that are asked for, as events."""
    for finding in findings:
        if loop.asked.wants(finding.code):
            loop.failed |= finding.severity is Severity.ERROR
            loop.open |= finding.code == "GV109"
            yield Found(finding)
