"""One target through its worker within `--budget`: no further step begins once it is spent.

What is not begun is said: cases make a target unchecked, what comes after them is told as left out.
"""

from __future__ import annotations

from collections.abc import Callable

from gradverify.events import BeyondStarted, CaseStarted, Contradicted, DiagnosisStarted, Event, Found, Verify
from gradverify.model import Severity, TargetPlan
from gradverify.session.aggregate import TargetState
from gradverify.session.outcome import INCONCLUSIVE_CODES, UNCHECKED_CODES
from gradverify.session.planning import Planned
from gradverify.session.request import Request, TargetProgress
from gradverify.spec.left_out import OPEN_SIZES

NOT_GREEN = UNCHECKED_CODES | INCONCLUSIVE_CODES
"""Codes that no verified target has, whatever their severity."""

SPENT = "the budget was spent"


def run_within_budget(
    planned: Planned, plan: TargetPlan, request: Request, state: TargetState, progress: TargetProgress
) -> None:
    """Let the worker verify what a plan says of a target, and take in what it answers.

    Raises `WorkerError`.
    """
    worker = planned.module.running(request)
    started = request.clock()
    for event in worker.ask(Verify(planned.target, plan, state.settings), request.timeout, request.memory):
        spent = request.budget is not None and request.clock() - started > request.budget
        if spent and _begins_a_step(event, state):
            planned.module.close()  # its worker is in the middle of an answer
            _end(event, state, request, worker.printed)
            return
        state.add(event, worker.printed)
        if state.beside_another and _decides(event):
            planned.module.close()
            return
        _tell(event, planned, progress)


def _tell(event: Event, planned: Planned, progress: TargetProgress) -> None:
    """What whoever waits should know before the report: an error is certain once it is found."""
    match event:
        case CaseStarted(case_id=case_id):
            progress.at(case_id)
        case DiagnosisStarted():
            progress.at("looking for the cause")
        case Found(finding=finding) | Contradicted(finding=finding) if finding.severity is Severity.ERROR:
            if planned.plan is None or not planned.plan.expected_failures:
                progress.found(finding)
        case _:
            pass


def _decides(event: Event) -> bool:
    """Whether a target does not pass with this."""
    found = event.finding if isinstance(event, Found) else None
    return found is not None and (found.severity is Severity.ERROR or found.code in NOT_GREEN)


def _begins_a_step(event: Event, state: TargetState) -> bool:
    """Whether what comes now may be left out; the first case never is."""
    match event:
        case CaseStarted(case_id=case_id):
            return bool(state.verified) and case_id not in {c.case_id for c in state.verified}
        case BeyondStarted() | DiagnosisStarted():
            return True
        case _:
            return False


def _end(event: Event, state: TargetState, request: Request, printed: Callable[[int | None], str]) -> None:
    """Say what is left out."""
    done, cases = len(state.cases_verified), len(state.plan.cases)
    match event:
        case BeyondStarted(beyond=first):
            for beyond in state.plan.beyond[state.plan.beyond.index(first) :]:
                state.add(BeyondStarted(beyond), printed)
                state.end_beyond(SPENT)
        case DiagnosisStarted():
            state.leave_out(f"the search for a cause: {SPENT}")
        case _ if done < cases:
            state.unchecked_because = (
                f"its budget of {request.budget:g} s was spent with {done} of {cases} cases verified"
            )
        case _:
            state.leave_out(f"{OPEN_SIZES}: {SPENT}")
