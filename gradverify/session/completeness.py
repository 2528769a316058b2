"""What is said of a target beside its findings: was all judged, what was expected, each case, the inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date

from gradverify.cases.selecting import matches
from gradverify.events import CaseVerified
from gradverify.model import (
    Case,
    CaseReport,
    Domain,
    ExpectedFailure,
    Finding,
    InputSource,
    Location,
    Outcome,
    Settings,
    Severity,
    TargetPlan,
    TensorInput,
    Verdict,
    tensors_of,
)
from gradverify.rules import CHECK_FAMILIES, RULES, Family, matching, rule
from gradverify.session.outcome import NOT_VERIFIED, status_of

_WORSE = (Outcome.NOT_RUN, Outcome.PASSED, Outcome.INCONCLUSIVE, Outcome.FAILED)

DECISIVE = (Family.GRADCHECK, Family.PRECISION, Family.REFERENCE)
"""Families one of which has compared the gradient with something in every case that is verified."""

_BADNESS = (
    Verdict.SKIPPED,
    Verdict.PASSED,
    Verdict.XFAILED,
    Verdict.INCONCLUSIVE,
    Verdict.UNCHECKED,
    Verdict.FAILED,
)
"""From green to red."""

_DIFFERENTIABLE = ("float", "bfloat", "complex")


def without_result(plan: TargetPlan, results: Sequence[CaseVerified]) -> dict[str, str]:
    """Why a planned case is not verified, by its id; only cases with an open question are in it.

    A result is needed for the case, for a check that compares its gradient, and for each of its pairs of an
    output and an input. A gradient that is declared to be none of forward's has nothing to be compared with.
    """
    decisive = (*DECISIVE, Family.CONTRACT) if plan.surrogate is not None else DECISIVE
    by_id = {result.case_id: result for result in results}
    reasons = {case.id: _open_question(by_id.get(case.id), decisive) for case in plan.cases}
    return {case_id: reason for case_id, reason in reasons.items() if reason}


def _open_question(result: CaseVerified | None, decisive: Sequence[Family]) -> str:
    if result is None:
        return "it was not verified to its end"
    if result.no_gradient:
        return ""
    outcomes = dict(result.checks)
    if all(outcomes.get(family.value, Outcome.NOT_RUN) is Outcome.NOT_RUN for family in decisive):
        return "its gradient was compared with nothing"
    for output, name in result.unjudged:
        return f"there is no result for the gradient of output {output} with respect to `{name}`"
    return ""


def outcome_of(results: Sequence[CaseVerified], family: Family) -> Outcome:
    """The worst outcome of a family of checks over all cases."""
    outcomes = [dict(c.checks).get(family.value, Outcome.NOT_RUN) for c in results]
    return max(outcomes, key=_WORSE.index, default=Outcome.NOT_RUN)


def reason_unchecked(
    plan: TargetPlan, settings: Settings, results: Sequence[CaseVerified], ignored: Sequence[str]
) -> str:
    """Why a target is not fully verified, though nothing wrong was found; empty if it is."""
    if plan.source is InputSource.SPEC and not plan.cases:
        dropped = f" ({plan.infeasible} dropped)" if plan.infeasible else ""
        return f"no case has valid inputs{dropped}"
    if all(r.code.startswith(tuple(ignored)) for r in RULES if r.code.startswith("GV1")):
        return "all of GV1 is ignored: its gradient was not verified"
    judged = [c for c in results if not c.no_gradient]
    at_points = [c for c in judged if c.points]  # the calls of several cases have none of their own
    passed = outcome_of(results, Family.GRADCHECK) is Outcome.PASSED
    if passed and at_points and all(c.empty for c in at_points):
        return "inputs or outputs are empty in every case: no gradient was verified"
    selected = {r.family for p in settings.select for r in matching(p)}  # each of them must have run
    if any(c.swept.native for c in judged):
        selected -= {Family.GRADCHECK}  # what its codes say is judged in native dtypes then
    for family in CHECK_FAMILIES:
        if family in selected and judged and outcome_of(results, family) is Outcome.NOT_RUN:
            nothing = f"nothing of the selected codes could be checked ({family.value})"
            return next((r for c in judged for r in c.remarks), nothing)
    return ""


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
    `not_judged` it is not known, since what they build on has failed.
    """
    valid = [e for e in expected if not _is_over(e, today)]
    marked = [replace(f, expected=True) if any(_covers(e, f) for e in valid) else f for f in findings]
    for one in expected:
        if one not in valid:
            marked.append(_no_longer(one, spec_file, f"its end, {one.until}, is past"))
        elif whole:
            asked = [c for c in one.codes if settings.selects(c) and not c.startswith(settings.ignore)]
            judged = [c for c in asked if rule(c).family not in not_judged]
            missed = [c for c in judged if not any(f.code == c and _covers(one, f) for f in findings)]
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


def _no_longer(expected: ExpectedFailure, spec_file: str, why: str) -> Finding:
    where = Location(spec_file, expected.line) if spec_file and expected.line else None
    return Finding(
        "GV004",
        rule("GV004").severity,
        f"the expected failure ({expected.reason}) does not hold: {why}",
        hint="Good news, or a check that no longer sees it: remove the `xfail`, or correct it.",
        location=where,
    )


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
    unreported = not reports or (status in NOT_VERIFIED and worst < _BADNESS.index(status))
    if unreported or _said(rest):
        own = status if unreported else status_of(rest, unchecked=False, strict=strict)
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
    reported = sorted(
        (f for f in findings if f.severity is not Severity.NOTE),
        key=lambda f: (severities.index(f.severity), f.code, f.message),
    )
    return tuple(dict.fromkeys((f.code, f.message) for f in reported))


def domain_of(plan: TargetPlan, sizes_swept: int, *, of_complex_use: bool) -> Domain:
    """What a target was judged on, at so many sizes; `of_complex_use` where its source speaks of it."""
    if not plan.cases or plan.cases[0].hook:
        return Domain()
    tensors = [t for case in plan.cases for one in case.inputs for t in tensors_of(one)]
    floating = [t for t in tensors if t.dtype.startswith(_DIFFERENTIABLE) and not t.mutated]
    judged = [t for t in floating if t.requires_grad is not False]
    constants = {t.name: None for t in floating if t.requires_grad is False}
    is_complex = {t.dtype.startswith("complex") for t in judged}
    numbers = [word for word, kind in (("real", False), ("complex", True)) if kind in is_complex]
    return Domain(
        numbers=tuple(numbers),
        real_alone=of_complex_use and numbers == ["real"],
        ranges=tuple(dict.fromkeys(phrase for t in judged for phrase in _restricted(t))),
        constants=tuple(constants),
        sizes=_sizes(plan.cases[0]) if sizes_swept <= 1 else "",
    )


def _restricted(tensor: TensorInput) -> Iterator[str]:
    if tensor.domain != "real":
        yield f"`{tensor.name}` {tensor.domain}"
    if tensor.range is not None:
        yield f"`{tensor.name}` in [{tensor.range[0]:g}, {tensor.range[1]:g}]"
    if tensor.structure:
        yield f"`{tensor.name}` {tensor.structure}"


def _sizes(case: Case) -> str:
    """The sizes of a case; its shapes where they have no names."""
    if case.sizes:
        return ",".join(f"{name}={size}" for name, size in case.sizes)
    shapes = [t for one in case.inputs for t in tensors_of(one) if t.shape]
    return ", ".join(f"{t.name} {list(t.shape)}" for t in shapes)
