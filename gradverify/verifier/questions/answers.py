"""What one of torch's transforms answers: a line of the capability table, and the findings behind it."""

from __future__ import annotations

from dataclasses import dataclass

from gradverify.model import Finding, RaisedError, Severity
from gradverify.verifier.checks.subject import first_line
from gradverify.verifier.questions.verified import Verified


@dataclass(frozen=True)
class Answer:
    """`yes`, `no`, `wrong` or `not-run`, and why."""

    capability: str = "not-run"
    findings: tuple[Finding, ...] = ()


NOT_RUN = Answer()
UNSUPPORTED = Answer("no")


def wrong(finding: Finding) -> Answer:
    """The transform gives another value, or fails by accident."""
    return Answer("wrong", (finding,))


def refusal(base: Verified, code: str, what: str, error: RaisedError) -> Finding:
    """The note that a transform raises, which users see anyway."""
    return base.finding(
        code,
        f"{what} raises {error.type}: {first_line(error.message)}",
        hint="If it is meant to be supported, see the traceback with -vv; else nothing need be done.",
        severity=Severity.NOTE,
        raised=error,
    )
