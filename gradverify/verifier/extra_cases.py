"""What is asked beside the listed cases: unlisted sizes, overlapping calls, past constants, evaluation mode.

No spec says that such inputs are valid, so what forward refuses there is a note at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from gradverify.events import BeyondJudged, BeyondStarted, CaseStarted, Event, Found
from gradverify.model import Beyond, Finding, Point, Severity, Swept, TargetKind
from gradverify.rules import Family
from gradverify.verifier.beyond import judge_beyond
from gradverify.verifier.case_state import CaseState
from gradverify.verifier.checks.first_order import backward_raised
from gradverify.verifier.checks.precision.findings import wrong_natively
from gradverify.verifier.checks.result import CheckResult, outcome_of
from gradverify.verifier.checks.subject import NoSample, Sample
from gradverify.verifier.checks.undeclared import at_undeclared
from gradverify.verifier.checks.unlisted import at_unlisted
from gradverify.verifier.doubt.inferred_inputs import guarded_at_unlisted
from gradverify.verifier.three_dimensions import judged_at_three_dimensions, with_three_dimensions
from gradverify.verifier.variations.across_cases import MOST_CASES
from gradverify.verifier.variations.across_cases import overlapping_cases as overlapped
from gradverify.verifier.verification import Verification

IN_EVALUATION_MODE = "In training mode it is right: look at what `self.training` decides."


OUT_OF_ORDER = "sizes that are larger than others in every listed case are not, there"
"""Why nothing is known at a case."""


def extra_cases(asked: Verification) -> Iterator[Event]:
    """Ask what can add something once the listed cases are verified."""
    plan = asked.request.plan
    for case in (*plan.open_sized, *plan.degenerate):
        # Inferred inputs at which nothing was verified are no better where they are empty.
        if asked.is_verified if asked.request.inferred else asked.has_no_error:
            judge = partial(_unlisted_sizes, open_sized=case in plan.open_sized)
            yield from asked.noted(asked.ask(case, judge), case)
    if asked.is_verified and asked.wants("GV408"):
        yield from asked.noted(_overlapping_cases(asked), plan.cases[0])
    yield from _another_rank(asked)
    if asked.is_verified and asked.wants("GV101"):
        for beyond in plan.beyond:
            yield from _beyond(asked, beyond)
        if asked.request.target.kind is TargetKind.MODULE:
            # A module is built in training mode; in evaluation mode it may compute another function.
            evaluated = replace(asked, live=replace(asked.live, value=_evaluating(asked.live.value)))
            case = plan.cases[0]
            yield from evaluated.ask(case, _evaluation_mode, named=f"{case.id} in evaluation mode")


def _beyond(asked: Verification, beyond: Beyond) -> Iterator[Event]:
    """Judge a case past a constant; what is wrong where sizes lose their order, again where they keep it."""
    events = list(_beyond_alone(asked, beyond))
    if beyond.in_order is None or not any(isinstance(event, Found) for event in events):
        yield from events
        return
    for case in beyond.in_order:
        kept = list(_beyond_alone(asked, replace(beyond, case=case, in_order=None)))
        if any(isinstance(event, Found) for event in kept):
            yield from kept
            return
    yield BeyondStarted(beyond)
    yield BeyondJudged(OUT_OF_ORDER)


def _beyond_alone(asked: Verification, beyond: Beyond) -> Iterator[Event]:
    usual = next(c for c in asked.request.plan.cases if c.options == beyond.case.options)
    built = asked.build(beyond.case)
    if isinstance(built, Finding):
        yield BeyondStarted(beyond)
        yield BeyondJudged("the module cannot be built")
        return
    for event in judge_beyond(*built, beyond, asked.wanted, usual):
        if not isinstance(event, Found) or asked.wants(event.finding.code):
            yield event


def _unlisted_sizes(sample: Sample | NoSample, state: CaseState, *, open_sized: bool) -> Iterator[Finding]:
    """The first order at unlisted sizes, and native dtypes where symbolic shapes leave them open."""
    found = at_unlisted(sample, open_sized=open_sized)
    if isinstance(sample, NoSample):
        yield from found.result.findings
        return
    result = guarded_at_unlisted(sample, found.result)
    yield from result.findings
    state.last = sample
    state.add(sample.family, result)
    state.points = int(found.judged)
    state.swept = Swept(sizes=(sample.case.id,) if found.judged else ())
    native = wrong_natively(sample) if open_sized and found.is_right else ()
    yield from native
    if native:
        state.add(Family.PRECISION, CheckResult(native, outcome_of(native)))


def _another_rank(asked: Verification) -> Iterator[Event]:
    """Inferred inputs at three dimensions, for each combination of options."""
    inferred = asked.is_verified and asked.request.inferred
    first_of_each = {c.options: c for c in reversed(asked.request.plan.cases)} if inferred else {}
    for case in first_of_each.values():
        deeper = with_three_dimensions(case)
        usual = asked.sample(case) if deeper is not None else None
        if deeper is not None and usual is not None:
            judge = partial(judged_at_three_dimensions, usual)
            yield from asked.noted(asked.ask(deeper, judge, named=f"{case.id} at three dimensions"), case)


def _overlapping_cases(asked: Verification) -> Iterator[Event]:
    """Let calls of different cases overlap: what one of them keeps must not reach another."""
    plan = asked.request.plan
    samples = [*filter(None, map(asked.sample, (*plan.cases, *plan.open_sized)[:MOST_CASES]))]
    # At sizes that are not listed a kernel may leave its tensors.
    spares = plan.spares[:1] if asked.request.settings.device == "cpu" else ()
    unlisted = [*filter(None, map(asked.sample, spares))]
    every = [*samples, *unlisted]
    if len(every) < 2 or not samples:
        return
    yield CaseStarted(samples[0].case.id, Point.TYPICAL, 0)
    varied = overlapped(samples, unlisted)
    yield from asked.reported(varied.findings)
    state = CaseState(swept=varied.swept)
    for sample in every:
        state.count_calls(sample)
    yield state.verified(replace(samples[0].case, id=" with ".join(s.case.id for s in every)))


def _evaluating(module_class: type[nn.Module]) -> type[nn.Module]:
    """The class of the same modules, built in evaluation mode."""

    def init(self: nn.Module, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 - the author's own
        module_class.__init__(self, *arguments, **named)
        self.eval()

    made: type[nn.Module] = type(module_class.__name__, (module_class,), {"__init__": init})
    return made


def _evaluation_mode(sample: Sample | NoSample, state: CaseState) -> Iterator[Finding]:
    """The first order of a module in evaluation mode; what forward refuses there is not judged."""
    state.capabilities["evaluation_mode"] = "no"
    if isinstance(sample, NoSample):
        return
    found = at_undeclared(sample)
    findings = [f for f in found.result.findings if f.severity is Severity.ERROR]
    if found.raised is not None:
        raised = backward_raised(sample, found.raised)
        findings.append(replace(raised, severity=Severity.NOTE) if found.raised.deliberate else raised)
    wrong = any(f.severity is Severity.ERROR for f in findings)
    if found.judged or findings:
        state.add(sample.family, CheckResult((), outcome_of(findings)))
    state.capabilities["evaluation_mode"] = "wrong" if wrong else "yes" if found.judged else "no"
    for finding in findings:
        message, hint = f"in evaluation mode {finding.message}", f"{IN_EVALUATION_MODE} {finding.hint}"
        yield replace(finding, message=message, hint=hint.strip())
