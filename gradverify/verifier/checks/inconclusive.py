"""Findings on inferred inputs as inconclusive ones, each with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradverify.model import Finding
from gradverify.rules import rule

MOST_NAMED = 3
"""Guesses that one sentence names."""


def invented(finding: Finding, invented: Sequence[str]) -> Finding:
    """The finding on inputs of which something was guessed."""
    named = list(invented)
    if len(named) > MOST_NAMED:  # `gradverify init` writes them all
        named = [*named[: MOST_NAMED - 1], f"{len(named) - MOST_NAMED + 1} others"]
    what = " and ".join(filter(None, (", ".join(named[:-1]), named[-1])))
    were = "were" if len(named) > 1 else "was"
    return replace(
        finding,
        code="GV109",
        suspected=finding.code,
        severity=rule("GV109").severity,
        message=f"inputs inferred: {finding.message}; but {what} {were} guessed",
        hint="If such inputs are valid, this is a mistake: confirm them in a spec, which "
        "`gradverify init` drafts.",
    )


def joined(signs: Sequence[str]) -> str:
    """`that ... (one sign; another)` of several `that ... (a sign)`."""
    first, *others = signs
    more = "".join(f"; {one.partition('(')[2].removesuffix(')')}" for one in others)
    return f"{first.removesuffix(')')}{more})" if others else first


def deliberate(finding: Finding, meant: str) -> Finding:
    """The finding where the source or the numbers say that no derivative is meant."""
    said = f"inputs inferred: {finding.message}; but {meant} was guessed"
    hint = (
        "If it is meant, say so in a spec: `surrogate: {reason: ...}`, or `surrogate:` with a composite "
        "whose gradient it is; else this is a mistake."
    )
    return replace(
        finding,
        code="GV109",
        suspected=finding.code,
        severity=rule("GV109").severity,
        message=said,
        hint=hint,
        cause="looks-surrogate",
    )


def refused(finding: Finding) -> Finding:
    """The finding of an exception that backward raises on purpose."""
    return replace(
        finding,
        code="GV109",
        suspected=finding.code,
        severity=rule("GV109").severity,
        message=f"on inferred inputs {finding.message}; forward took them, but they may not be what is meant",
        hint="Write a spec with valid inputs (shapes, domain, range) and run again.",
    )


def unsteady(finding: Finding) -> Finding:
    """The finding where forward may have no derivative."""
    return replace(
        finding,
        code="GV109",
        suspected=finding.code,
        severity=rule("GV109").severity,
        message=f"on inferred inputs {finding.message}; but a little aside it is another one, "
        "so forward may have no derivative at these inputs (an iteration that does not converge, a pole)",
        hint="Write a spec with valid inputs (domain, range) and run again.",
    )


def doubted(finding: Finding) -> Finding:
    """The finding that is not there at inputs of another kind."""
    return replace(
        finding,
        code="GV109",
        suspected=finding.code,
        severity=rule("GV109").severity,
        message=f"on inferred inputs {finding.message}; at inputs of another kind it is not, "
        "so these inputs may not be valid",
        hint="Write a spec with valid inputs (domain, range) and run again.",
    )
