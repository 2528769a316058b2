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
    return _inconclusive(
        finding,
        f"inputs inferred: {finding.message}; but {what} {'were' if len(named) > 1 else 'was'} guessed",
        "If such inputs are valid, this is a mistake: confirm them in the spec `gradverify init` drafts.",
    )


def deliberate(finding: Finding, signs: Sequence[str]) -> Finding:
    """The finding where the source or the numbers say that no derivative is meant: `that ... (a sign)`."""
    others = (f"; {one.partition('(')[2].removesuffix(')')}" for one in signs[1:])
    meant = f"{signs[0].removesuffix(')')}{''.join(others)})" if len(signs) > 1 else signs[0]
    hint = (
        "If it is meant, say so in a spec: `surrogate: {reason: ...}`, or `surrogate:` with a composite "
        "whose gradient it is; else this is a mistake."
    )
    said = f"inputs inferred: {finding.message}; but {meant} was guessed"
    return replace(_inconclusive(finding, said, hint), cause="looks-surrogate")


def _inconclusive(finding: Finding, message: str, hint: str) -> Finding:
    severity = rule("GV109").severity
    suspected = finding.code
    return replace(finding, code="GV109", suspected=suspected, severity=severity, message=message, hint=hint)
