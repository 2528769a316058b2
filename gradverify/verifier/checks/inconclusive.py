"""Findings on inferred inputs as inconclusive ones, each with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradverify.model import Finding
from gradverify.rules import rule

MOST_NAMED = 3
"""Guesses that one sentence names."""

IF_VALID = "If such inputs are valid, this is a mistake: confirm them in the spec `gradverify init` drafts."

_SPEC = "Write a spec with valid inputs (domain, range) and run again."


def invented(finding: Finding, invented: Sequence[str], hint: str = IF_VALID) -> Finding:
    """The finding on inputs of which something was guessed."""
    named = list(invented)
    if len(named) > MOST_NAMED:  # `gradverify init` writes them all
        named = [*named[: MOST_NAMED - 1], f"{len(named) - MOST_NAMED + 1} others"]
    what = " and ".join(filter(None, (", ".join(named[:-1]), named[-1])))
    said = f"inputs inferred: {finding.message}; but gradverify guessed {what}"
    return _inconclusive(finding, said, hint)


def undeclared(finding: Finding, why: str, declared: str) -> Finding:
    """The finding at values that a spec neither declares nor excludes; `declared` is what excludes them."""
    said = f"at values that the spec does not declare, {finding.message}; but {why}, so they may not be valid"
    return _inconclusive(finding, said, declare(declared))


def declare(what: str) -> str:
    """How a spec tells a domain from a mistake."""
    return (
        f"If such values are not valid, say so in a spec: {what}. If they are, this is a mistake: declare "
        "them, and it fails."
    )


def joined(signs: Sequence[str]) -> str:
    """`that ... (one sign; another)` of several `that ... (a sign)`."""
    first, *others = signs
    more = "".join(f"; {one.partition('(')[2].removesuffix(')')}" for one in others)
    return f"{first.removesuffix(')')}{more})" if others else first


def deliberate(finding: Finding, meant: str) -> Finding:
    """The finding where the source or the numbers say that no derivative is meant."""
    hint = (
        "If it is meant, say so in a spec: `surrogate: {reason: ...}`, or `surrogate:` with a composite "
        "whose gradient it is; else this is a mistake."
    )
    said = f"inputs inferred: {finding.message}; but gradverify guessed {meant}"
    return replace(_inconclusive(finding, said, hint), cause="looks-surrogate")


def refused(finding: Finding) -> Finding:
    """The finding of an exception that backward raises on purpose."""
    said = "forward took them, but they may not be what is meant"
    hint = "Write a spec with valid inputs (shapes, domain, range) and run again."
    return _inconclusive(finding, f"on inferred inputs {finding.message}; {said}", hint)


def unsteady(finding: Finding) -> Finding:
    """The finding where forward may have no derivative."""
    said = "but it differs at inputs next to these, so forward may have no derivative there (an "
    said += "iteration that does not converge, a pole)"
    return _inconclusive(finding, f"on inferred inputs {finding.message}; {said}", _SPEC)


def doubted(finding: Finding, declared: str) -> Finding:
    """The finding that is not there at inputs of another kind, which a spec declares as `declared`."""
    said = "but not at inputs of another kind, so these may not be valid"
    return _inconclusive(finding, f"on inferred inputs {finding.message}; {said}", declare(declared))


def _inconclusive(finding: Finding, message: str, hint: str) -> Finding:
    severity = rule("GV109").severity
    suspected = finding.code
    return replace(finding, code="GV109", suspected=suspected, severity=severity, message=message, hint=hint)
