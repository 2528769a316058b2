"""An `nn.Module` in evaluation mode: what it computes there may be another function, with another backward.

A module is built in training mode, and its cases are verified so. Once they are right, the first of them is
judged in evaluation mode too. What forward refuses there, and what cannot be measured, is told as not judged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from gradverify.events import CaseStarted, CaseVerified, Event, Found, Verify
from gradverify.model import Engine, Evaluations, Finding, Outcome, Point, Severity
from gradverify.rules import Family
from gradverify.verifier.asked import is_wanted
from gradverify.verifier.building import Live, build_subject
from gradverify.verifier.checks.first_order import backward_raised
from gradverify.verifier.checks.subject import NoSample, prepare
from gradverify.verifier.checks.undeclared import at_undeclared

CAPABILITY = "evaluation_mode"


def evaluating(module_class: type[nn.Module]) -> type[nn.Module]:
    """The class of the same modules, built in evaluation mode."""

    def init(self: nn.Module, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 - the author's own
        module_class.__init__(self, *arguments, **named)
        self.eval()

    made: type[nn.Module] = type(module_class.__name__, (module_class,), {"__init__": init})
    return made


def in_evaluation_mode(request: Verify, live: Live) -> Iterator[Event]:
    """Judge the first order of a module's first case in evaluation mode."""
    case = request.plan.cases[0]
    built = build_subject(request, replace(live, value=evaluating(live.value)), case, None)
    if isinstance(built, Finding):
        return
    subject, full_case = built
    if subject.surrogate is not None or subject.settings.engine is Engine.TORCH:
        return
    yield CaseStarted(case.id, Point.TYPICAL, 0)
    sample = prepare(subject, full_case, Point.TYPICAL, 0)
    if isinstance(sample, NoSample):
        yield _verified(f"{case.id} in evaluation mode", "no", Evaluations())
        return
    found = at_undeclared(sample)
    findings = [_told(f) for f in found.result.findings if f.severity is Severity.ERROR]
    if found.raised is not None:
        raised = _told(backward_raised(sample, found.raised))
        findings.append(replace(raised, severity=Severity.NOTE) if found.raised.deliberate else raised)
    told = [f for f in findings if is_wanted(f.code, request.settings, request.ignored)]
    for finding in told:
        yield Found(finding)
    wrong = any(f.severity is Severity.ERROR for f in told)
    counter = sample.problem.counter
    yield _verified(
        f"{case.id} in evaluation mode",
        "wrong" if wrong else "yes" if found.judged else "no",
        Evaluations(counter.forward, counter.backward),
    )


def _told(finding: Finding) -> Finding:
    hint = "In training mode it is right: look at what `self.training` decides."
    return replace(
        finding, message=f"in evaluation mode {finding.message}", hint=f"{hint} {finding.hint}".strip()
    )


def _verified(name: str, answer: str, evaluations: Evaluations) -> CaseVerified:
    return CaseVerified(
        case_id=name,
        checks=((Family.GRADCHECK.value, Outcome.FAILED),) if answer == "wrong" else (),
        evaluations=evaluations,
        points=0,
        smallest_visible_error=None,
        capabilities=((CAPABILITY, answer),),
    )
