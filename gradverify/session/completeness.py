"""Whether there is a result for all that was planned of a target: without one nothing is called passed."""

from __future__ import annotations

from collections.abc import Sequence

from gradverify.events import CaseVerified
from gradverify.model import Outcome, TargetPlan
from gradverify.rules import Family

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
