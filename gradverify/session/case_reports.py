"""What became of each case of a target: together they are never greener than the target itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradverify.model import Case, CaseReport, Finding, Severity, Verdict
from gradverify.session.outcome import NOT_VERIFIED, status_of

_BADNESS = (
    Verdict.SKIPPED,
    Verdict.PASSED,
    Verdict.XFAILED,
    Verdict.INCONCLUSIVE,
    Verdict.UNCHECKED,
    Verdict.FAILED,
)
"""From green to red."""


def case_reports(
    cases: Sequence[Case],
    missing: Mapping[str, str],
    findings: Sequence[Finding],
    *,
    status: Verdict,
    reason: str,
    strict: bool,
) -> tuple[CaseReport, ...]:
    """One report for each case, and one for the target where something concerns no case of its own.

    `missing` says of a case why it is not verified; `status` and `reason` are the target's.
    """
    known = {case.id for case in cases}
    reports = [
        _of_case(case.id, findings, (reason or missing[case.id]) if case.id in missing else "", strict=strict)
        for case in cases
    ]
    rest = [f for f in findings if f.case is None or f.case.id not in known]
    worst = max((_BADNESS.index(r.status) for r in reports), default=-1)
    untold = not reports or (status in NOT_VERIFIED and worst < _BADNESS.index(status))
    if untold or _said(rest):
        own = status if untold else status_of(rest, unchecked=False, strict=strict)
        reports.append(CaseReport("", own, _said(rest), "" if _said(rest) else reason))
    return tuple(reports)


def _of_case(case_id: str, findings: Sequence[Finding], unfinished: str, *, strict: bool) -> CaseReport:
    own = [f for f in findings if f.case is not None and f.case.id == case_id]
    status = status_of(own, unchecked=False, strict=strict)
    if unfinished and status not in NOT_VERIFIED:
        status = Verdict.UNCHECKED
    return CaseReport(case_id, status, _said(own), "" if _said(own) else unfinished)


def _said(findings: Sequence[Finding]) -> tuple[tuple[str, str], ...]:
    severities = list(Severity)
    told = sorted(
        (f for f in findings if f.severity is not Severity.NOTE),
        key=lambda f: (severities.index(f.severity), f.code, f.message),
    )
    return tuple(dict.fromkeys((f.code, f.message) for f in told))
