"""What every machine format needs to know of a report: where things are, what is worst, where a page is."""

from __future__ import annotations

from gradverify.model import Finding, Location, Mistake, Report, Severity, TargetReport, Verdict

HOME = "https://github.com/gradverify/gradverify"
"""Where the project lives."""

NOT_VERIFIED = (Verdict.FAILED, Verdict.INCONCLUSIVE, Verdict.UNCHECKED)
"""Verdicts that are never green, worst first."""


def help_uri(code: str) -> str:
    """Where a code is explained."""
    return f"{HOME}/blob/main/docs/rules/{code}.md"


def in_order(report: Report) -> list[TargetReport]:
    """Targets by where they are."""
    return sorted(report.targets, key=lambda t: (t.target.file, t.target.line, t.target.name))


def mistakes_in_order(report: Report) -> list[Mistake]:
    """Mistakes by where they are; those without a place come first."""
    nowhere = Location("", 0)
    return sorted(report.errors, key=lambda m: (m.location or nowhere, m.message))


def reported(target: TargetReport) -> list[Finding]:
    """The findings that weigh on a target's verdict or warn: no notes, nothing that was expected."""
    return [f for f in target.findings if f.severity is not Severity.NOTE and not f.expected]
