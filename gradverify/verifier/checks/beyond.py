"""A case past a constant of the source: the first order and the reference, and what memory was read.

Nobody has said that such a size is valid. What forward refuses, and what cannot be measured there, is
silence that the report tells; a gradient that is wrong is a finding, and where the spec lists the values of
that size it makes the target inconclusive, no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gradverify.events import BeyondJudged, BeyondStarted, Event, Found
from gradverify.model import Beyond, Case, Engine, Finding, Outcome, Point, Severity
from gradverify.rules import Family, rule
from gradverify.verifier.checks import run_checks
from gradverify.verifier.checks.inferred import guarded
from gradverify.verifier.checks.subject import NoSample, Sample, Subject, prepare
from gradverify.verifier.checks.variations.unwritten import read_unwritten

FAMILIES = frozenset({Family.GRADCHECK, Family.REFERENCE})
"""What is run there: the rest of the sweep does not hang on a block."""


def judge_beyond(subject: Subject, case: Case, beyond: Beyond, wanted: frozenset[Family]) -> Iterator[Event]:
    """Verify one such case."""
    yield BeyondStarted(beyond)
    if subject.settings.engine is Engine.TORCH:
        yield BeyondJudged("--engine torch would build its whole Jacobian")
        return
    sample = prepare(subject, case, Point.TYPICAL, 0)
    if isinstance(sample, NoSample):
        raised = sample.raised
        yield BeyondJudged(f"forward raises {raised.type}" if raised is not None else "it has no gradient")
        return
    errors, outcome = _judged(sample, wanted)
    if not errors and outcome is not Outcome.PASSED:
        yield BeyondJudged("its gradient could not be measured there")
        return
    for finding in errors:
        yield Found(_past(finding, beyond))
    yield BeyondJudged()


def _judged(sample: Sample, wanted: frozenset[Family]) -> tuple[list[Finding], Outcome]:
    results, _ = run_checks(sample, wanted & FAMILIES)
    results = guarded(sample, results)
    findings = [f for result in results.values() for f in result.findings]
    errors = [f for f in findings if f.severity is Severity.ERROR]
    first = results[Family.GRADCHECK]
    surrogate = sample.subject.surrogate is not None
    outcome = results[Family.REFERENCE].outcome if surrogate else first.outcome
    if first.uncovered or any(f.code == "GV109" for f in findings):
        outcome = Outcome.INCONCLUSIVE
    return [*errors, *read_unwritten(sample)], outcome


def _past(finding: Finding, beyond: Beyond) -> Finding:
    """The finding with the words that it is right at the sizes asked for."""
    where = beyond.case.id
    if not beyond.declared:
        hint = f"At smaller sizes it is right: {where}. Look at the rest of the last block."
        return replace(finding, hint=f"{finding.hint} {hint}".strip())
    return replace(
        finding,
        code="GV109",
        severity=rule("GV109").severity,
        message=f"{finding.message}; but nobody says that {where} is valid",
        hint=f"If it is, list such a value of `{beyond.size}` in the spec's sizes, and this is a mistake; if "
        f"not, forbid it with `where:`, as in `{beyond.size} <= {dict(beyond.case.sizes)[beyond.size] - 1}`.",
    )
