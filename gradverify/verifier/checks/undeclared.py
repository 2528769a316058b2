"""First order at values that no spec declares: only what is certain there is reported.

No spec says that such values are valid, so an exception, a value that is not finite and everything that
could not be measured is silence. A confirmed difference from a derivative that exists is a mistake wherever
it shows.

First order at sizes that are not listed: those that symbolic shapes leave open, and invented 0 and 1.

Forward may refuse them: that is a note. What it accepts, backward must differentiate; at a size that is
invented against a list, what is wrong is a warning.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gradverify.model import Case, Finding, Outcome, Point, RaisedError, Severity
from gradverify.verifier.checks.contract import contract
from gradverify.verifier.checks.first_order import (
    backward_raised,
    refused_empty,
)
from gradverify.verifier.checks.result import CheckResult, FirstOrder, outcome_of
from gradverify.verifier.checks.subject import NoSample, Sample, first_line
from gradverify.verifier.guard import Raised

HINTS = {
    Point.WIDE: "At moderate values it is right. Look for a branch or a clamp that backward does not share "
    "with forward. If such values are not valid, say so in the spec with `range` or `domain`.",
    Point.SPECIAL: "At ordinary values it is right: these hold zeros, ties or duplicates. If such values "
    "are not valid, say so in the spec with `avoid`, `domain` or `distinct`.",
}


@dataclass(frozen=True)
class AtUndeclared:
    """What came of one undeclared draw."""

    result: CheckResult
    judged: bool
    """Something of the Jacobian could be measured there."""
    raised: RaisedError | None = None
    """What backward raised."""

    @property
    def is_right(self) -> bool:
        """Something could be measured, and all of it is as it should be."""
        return self.judged and not self.result.findings


SILENCE = AtUndeclared(CheckResult(outcome=Outcome.NOT_RUN), judged=False)


RETURNED = frozenset({"GV103", "GV105"})
"""Codes on what backward returned that hang on no value."""


def at_unlisted(
    sample: Sample | NoSample, judged: Callable[[Sample], AtUndeclared], *, open_sized: bool
) -> AtUndeclared:
    """Judge one typical draw. `open_sized`: symbolic shapes say that any size is valid, none is listed."""
    if isinstance(sample, NoSample):
        raises = [f for f in sample.findings if f.code in {"GV002", "GV412"}]
        return _refused([_refusal(f) for f in raises])
    if _without_values(sample):
        said = f"forward gives no finite value at {sample.case.id}, which no spec lists"
        return _refused([sample.finding("GV412", said, severity=Severity.NOTE)])
    empty = refused_empty(sample)
    found = AtUndeclared(empty.result, judged=True) if empty is not None else judged(sample)
    returned = contract(sample, FirstOrder(found.result)).findings
    irregular = [f for f in returned if f.code in RETURNED and f.severity is Severity.ERROR]
    replaced = {f.input for f in irregular}
    findings = [*irregular, *(f for f in found.result.findings if f.input not in replaced or f.input is None)]
    if found.raised is not None and not irregular:
        findings.append(_raised(sample, found.raised))
    reported = tuple(_reported_unlisted(f, sample.case, open_sized=open_sized) for f in findings)
    return AtUndeclared(CheckResult(reported, outcome_of(reported)), found.judged or bool(reported))


def _without_values(sample: Sample) -> bool:
    """Whether all that forward returns is NaN or infinite: it says no less than an exception does."""
    values = sample.problem.evaluate(sample.problem.primals)
    if isinstance(values, Raised):
        return False
    flat = sample.problem.outputs.flatten(values.value)
    return bool(flat.numel()) and not flat.isfinite().any()


def _refused(findings: list[Finding]) -> AtUndeclared:
    return AtUndeclared(CheckResult(tuple(findings), Outcome.NOT_RUN), judged=False)


def _refusal(finding: Finding) -> Finding:
    raised = finding.raised
    where = finding.case.id if finding.case is not None else ""
    said = f"{raised.type}: {first_line(raised.message)}" if raised is not None else finding.message
    message = f"forward refuses {where}, which no spec lists: {said}"
    return replace(finding, code="GV412", severity=Severity.NOTE, message=message, hint="")


def _raised(sample: Sample, error: RaisedError) -> Finding:
    finding = backward_raised(sample, error)
    return replace(finding, severity=Severity.NOTE) if error.deliberate else finding


def _reported_unlisted(finding: Finding, case: Case, *, open_sized: bool) -> Finding:
    """The finding, with what it has to do with sizes."""
    if finding.severity is not Severity.ERROR or not open_sized:
        severity = Severity.NOTE if finding.severity is Severity.NOTE else Severity.WARNING
        return replace(
            finding,
            code="GV412",
            severity=severity,
            message=f"at {case.id}, which no spec lists, {finding.message}",
            hint="If such sizes are valid, list them under `sizes:`; then this is an error.",
        )
    hint = (
        f"In the cases before it is right, at {case.id} it is not. If that is not valid, list the valid "
        "sizes under `sizes:`, or the valid combinations of options under `cases:`."
    )
    return replace(finding, hint=f"{finding.hint} {hint}".strip())
