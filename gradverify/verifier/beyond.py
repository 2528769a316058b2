"""A case past a constant of the source: the first order and the reference, and what memory was read.

Nobody has said that such a size is valid. What forward refuses, and what cannot be measured there, is
silence that the report tells; a gradient that is wrong is a finding, and where the spec lists the values of
that size it makes the target inconclusive, no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gradverify.events import BeyondDoubted, BeyondJudged, BeyondStarted, Event, Found
from gradverify.model import Beyond, Case, Engine, Finding, Outcome, Point, Severity
from gradverify.rules import Family, rule
from gradverify.verifier.checks.first_order import measured_first_order
from gradverify.verifier.checks.inferred import guarded
from gradverify.verifier.checks.reference import reference
from gradverify.verifier.checks.result import CheckResult, FirstOrder
from gradverify.verifier.checks.subject import (
    NoSample,
    Sample,
    Subject,
    prepare,
)
from gradverify.verifier.numerics.proof import certify
from gradverify.verifier.variations.uninitialized import read_unwritten

LARGEST_JACOBIAN = 1_000
"""Entries of a Jacobian that is built there: a larger one is only followed to what is wrong."""


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
    if sample.disconnected or subject.surrogate is not None:
        yield BeyondJudged("its gradient is not meant to be the derivative of all it returns")
        return
    settings = subject.settings
    certificate = certify(sample.problem, rtol=settings.rtol, key=sample.key)
    if certificate is None:
        yield BeyondDoubted()
        first = measured_first_order(sample, largest=LARGEST_JACOBIAN)
    else:
        first = FirstOrder(CheckResult(smallest_visible_error=certificate.visible), proven=True)
    errors = _errors(sample, first, wanted)
    if not errors and first.result.outcome is not Outcome.PASSED:
        yield BeyondJudged("its gradient could not be measured there")
        return
    for finding in errors:
        yield Found(_past(finding, beyond))
    yield BeyondJudged()


def _errors(sample: Sample, first: FirstOrder, wanted: frozenset[Family]) -> list[Finding]:
    """What is wrong there; inconclusive where that may come from what was guessed of inferred inputs."""
    results = {Family.GRADCHECK: first.result}
    if Family.REFERENCE in wanted:
        results[Family.REFERENCE] = reference(sample, first, None)
    # Smaller sizes, even ones or not, say nothing of what is wrong past a constant.
    here = replace(sample, subject=replace(sample.subject, spares=()))
    found = [
        judged
        for family, result in guarded(here, results).items()
        for f, judged in zip(results[family].findings, result.findings, strict=True)
        if f.severity is Severity.ERROR
    ]
    return [*found, *read_unwritten(sample)]


def _past(finding: Finding, beyond: Beyond) -> Finding:
    """The finding with the words that it is right at the sizes asked for."""
    where = beyond.case.id
    if not beyond.declared:
        hint = (
            f"At other sizes it is right; this is {where}: look at a last block that is not full, a branch."
        )
        return replace(finding, hint=f"{finding.hint} {hint}".strip())
    return replace(
        finding,
        code="GV109",
        severity=rule("GV109").severity,
        message=f"{finding.message}; but nobody says that {where} is valid",
        hint=f"If it is, list such a value of `{beyond.size}` in the spec's sizes, and this is a mistake; if "
        f"not, forbid it with `where:`, as in `{beyond.size} <= {dict(beyond.case.sizes)[beyond.size] - 1}`.",
    )
