"""What one transform answers: whether a target supports it, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradverify.model import Finding, RaisedError, Severity
from gradverify.verifier.checks.subject import first_line
from gradverify.verifier.checks.variations.verified import Verified

TORCH_WORDS = "If it is meant to be supported, see the traceback with -vv; else nothing need be done."


@dataclass(frozen=True)
class Answer:
    """One line of the capability table, and the findings behind it."""

    capability: str = "not-run"
    """`yes`, `no`, `wrong` or `not-run`."""
    findings: tuple[Finding, ...] = field(default=())


NOT_RUN = Answer()
UNSUPPORTED = Answer("no")


def wrong(finding: Finding) -> Answer:
    """The transform gives another value, or fails by accident."""
    return Answer("wrong", (finding,))


def refused(base: Verified, code: str, what: str, error: RaisedError) -> Answer:
    """The transform raises: a note, since nobody can overlook it."""
    return Answer("no", (refusal(base, code, what, error),))


def refusal(base: Verified, code: str, what: str, error: RaisedError) -> Finding:
    """The note that a transform raises."""
    return base.finding(
        code,
        f"{what} raises {error.type}: {first_line(error.message)}",
        hint=TORCH_WORDS,
        severity=Severity.NOTE,
        raised=error,
    )
