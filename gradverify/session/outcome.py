"""Where every status and the exit code are derived: findings in, verdicts out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import IntEnum
from operator import attrgetter
from typing import TYPE_CHECKING

from gradverify.model import Severity, Verdict

if TYPE_CHECKING:
    from gradverify.model import Finding, TargetReport


class ExitCode(IntEnum):
    """What the process exits with; where several apply, the first that applies in this order."""

    INTERRUPTED = 130
    BUG = 3
    USAGE = 2
    FINDINGS = 1
    NOTHING = 5
    OK = 0


UNCHECKED_CODES = frozenset({"GV001", "GV902", "GV903"})
INCONCLUSIVE_CODES = frozenset({"GV109"})

NOT_VERIFIED = frozenset({Verdict.FAILED, Verdict.INCONCLUSIVE, Verdict.UNCHECKED})
"""Verdicts that are never green."""

SAID_BY = {"GV110": ("GV101", "GV107", "GV108")}
"""Codes beside which, of the same gradient, a finding has nothing to add."""

UNSTEADY = frozenset({"stale", "not-repeated"})
"""Causes of a gradient that hangs on other calls: no number of it decides anything."""

_SEVERITIES = tuple(Severity)


def status_of(findings: Iterable[Finding], *, unchecked: bool, strict: bool = False) -> Verdict:
    """The verdict on a target that was not skipped: the first of failed, unchecked, inconclusive, passed.

    `unchecked` says that something that was asked for did not run to its end. Under `strict` a warning
    fails as an error does, but for those that decide another verdict.
    """
    found = tuple(findings)
    if any(fails(f, strict=strict) for f in found):
        return Verdict.FAILED
    codes = {f.code for f in found if not f.expected}
    if unchecked or codes & UNCHECKED_CODES:
        return Verdict.UNCHECKED
    if codes & INCONCLUSIVE_CODES:
        return Verdict.INCONCLUSIVE
    if any(f.expected for f in found):
        return Verdict.XFAILED
    return Verdict.PASSED


def fails(finding: Finding, *, strict: bool) -> bool:
    """Whether a finding fails its target."""
    deciding = UNCHECKED_CODES | INCONCLUSIVE_CODES
    warned = strict and finding.severity is Severity.WARNING and finding.code not in deciding
    return not finding.expected and (finding.severity is Severity.ERROR or warned)


def merge_findings(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """One finding for each (code, test, input, output): the worst, with the number of cases it affects.

    Sorted by severity, code, what is suspected, output and input. A suspicion on guessed inputs of one case
    is left out where another case shows the same error for certain, and so is a small error of a gradient
    that is, or may be, wrong elsewhere. Where a gradient hangs on other calls, what nothing decides goes
    unsaid.
    """
    if any(f.severity is Severity.ERROR and f.cause in UNSTEADY and not f.expected for f in findings):
        findings = [f for f in findings if f.code not in INCONCLUSIVE_CODES]
    certain = {(f.code, f.input, f.output) for f in findings if f.severity is Severity.ERROR}
    larger = certain | {(f.suspected, f.input, f.output) for f in findings}
    findings = [
        f
        for f in findings
        if (f.suspected, f.input, f.output) not in certain
        and not any((code, f.input, f.output) in larger for code in SAID_BY.get(f.code, ()))
    ]
    groups: dict[tuple[str, str, str, int, bool], list[Finding]] = {}
    for finding in findings:
        output = -1 if finding.output is None else finding.output
        key = (finding.code, finding.part, finding.input or "", output, finding.expected)
        groups.setdefault(key, []).append(finding)
    merged = []
    for group in groups.values():
        worst = min(group, key=attrgetter("telling"))
        cases = {f.case.id for f in group if f.case is not None}
        merged.append(replace(worst, cases_affected=max(1, len(cases))))
    return tuple(sorted(merged, key=_order))


def exit_code(reports: Sequence[TargetReport], *, user_errors: bool, bugs: bool = False) -> ExitCode:
    """The exit code of a run that came to its end; `bugs` are gradverify's own."""
    if bugs:
        return ExitCode.BUG
    if user_errors:
        return ExitCode.USAGE
    if any(r.status in NOT_VERIFIED for r in reports):
        return ExitCode.FINDINGS
    return ExitCode.OK if reports else ExitCode.NOTHING


def summary_of(reports: Sequence[TargetReport]) -> tuple[tuple[str, int], ...]:
    """(`targets`, count), (verdict, count) for every verdict, and how many failed in second order alone."""
    counts = Counter(r.status for r in reports)
    by_verdict = ((v.value, counts[v]) for v in Verdict)
    return (
        ("targets", len(reports)), *by_verdict, ("first_order_only", sum(r.first_order_only for r in reports))
    )  # fmt: skip


def _order(finding: Finding) -> tuple[int, str, str, int, str, str]:
    """What is suspected to be wrong comes before what could not be seen."""
    output = -1 if finding.output is None else finding.output
    suspected = finding.suspected or finding.code
    place = output, finding.input or "", finding.part
    return _SEVERITIES.index(finding.severity), finding.code, suspected, *place
