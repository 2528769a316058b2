"""Expected failures: what a spec's `xfail` covers, and what no longer fails as it says (GV004)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date

from gradverify.model import ExpectedFailure, Finding, Location, Settings, Severity
from gradverify.rules import Family, rule
from gradverify.spec.selecting import matches


def mark_expected(
    findings: Sequence[Finding],
    expected: Sequence[ExpectedFailure],
    *,
    settings: Settings,
    spec_file: str,
    whole: bool,
    not_judged: Sequence[Family],
    today: date,
) -> list[Finding]:
    """Mark the findings that some `xfail` covers, and add GV004 for each that does not hold.

    `whole` says that every case of the target ran: only then can a code be missed. Of the families in
    `not_judged` it cannot be told, since what they build on has failed.
    """
    valid = [e for e in expected if not _is_over(e, today)]
    marked = [replace(f, expected=True) if any(_covers(e, f) for e in valid) else f for f in findings]
    for one in expected:
        if one not in valid:
            marked.append(_no_longer(one, spec_file, f"its end, {one.until}, is past"))
        elif whole:
            asked = [c for c in one.codes if settings.selects(c) and not c.startswith(settings.ignore)]
            told = [c for c in asked if rule(c).family not in not_judged]
            missed = [code for code in told if not _occurs(one, code, findings)]
            marked += [_no_longer(one, spec_file, f"{code} no longer occurs") for code in missed]
    return marked


def _is_over(expected: ExpectedFailure, today: date) -> bool:
    """`until` is exclusive: on that day the failure is no longer expected."""
    return bool(expected.until) and today >= date.fromisoformat(expected.until)


def _covers(expected: ExpectedFailure, finding: Finding) -> bool:
    if finding.code not in expected.codes or finding.severity is Severity.NOTE:
        return False
    if expected.input and finding.input != expected.input:
        return False
    case = finding.case
    return not expected.cases or (case is not None and any(matches(case.id, f) for f in expected.cases))


def _occurs(expected: ExpectedFailure, code: str, findings: Sequence[Finding]) -> bool:
    return any(f.code == code and _covers(expected, f) for f in findings)


def _no_longer(expected: ExpectedFailure, spec_file: str, why: str) -> Finding:
    where = Location(spec_file, expected.line) if spec_file and expected.line else None
    return Finding(
        "GV004",
        rule("GV004").severity,
        f"the expected failure ({expected.reason}) does not hold: {why}",
        hint="Good news, or a check that no longer sees it: remove the `xfail`, or mend it.",
        location=where,
    )
