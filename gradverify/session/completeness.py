"""Whether there is a result for all that was planned of a target: without one nothing is called passed."""

from __future__ import annotations

from collections.abc import Sequence

from gradverify.events import CaseVerified
from gradverify.model import InputSource, Outcome, Settings, TargetPlan
from gradverify.rules import RULES, Family, matching

CHECK_FAMILIES = (
    Family.GRADCHECK,
    Family.GRADGRADCHECK,
    Family.REFERENCE,
    Family.CONTRACT,
    Family.PRECISION,
)

_WORSE = (Outcome.NOT_RUN, Outcome.PASSED, Outcome.INCONCLUSIVE, Outcome.FAILED)

DECISIVE = (Family.GRADCHECK, Family.PRECISION, Family.REFERENCE)
"""Families one of which has compared the gradient with something in every case that is verified."""


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
    for family in CHECK_FAMILIES:
        if family in selected and judged and outcome_of(results, family) is Outcome.NOT_RUN:
            nothing = f"nothing of the selected codes could be checked ({family.value})"
            return next((r for c in judged for r in c.remarks), nothing)
    return ""
