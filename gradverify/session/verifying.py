"""One target through its worker: events in, report out; a dead worker is a finding."""

from __future__ import annotations

import re
from dataclasses import replace

from gradverify.events import CaseStarted, Verify
from gradverify.model import CasePoint, Finding, InputSource, Location, TargetPlan, TargetReport
from gradverify.rules import rule
from gradverify.session.aggregate import TargetState
from gradverify.session.planning import NoInputs, Planned, infer_plan
from gradverify.session.pool import Worker, WorkerDiedError, WorkerTimedOutError
from gradverify.session.request import Progress, Request

_FAULT_FRAME = re.compile(r'File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>\S+)')
"""A line of Python's faulthandler."""


def verify_target(
    planned: Planned, request: Request, progress: Progress, number: int, total: int
) -> TargetReport:
    """Verify one target. Whatever its code does costs at most its own verdict."""
    progress.verifying(planned.target.id, number, total, "")
    try:
        plan = planned.plan if planned.plan is not None else infer_plan(planned, request)
    except WorkerDiedError as died:
        return _without_plan(planned, request, _crashed(planned, died, None, "its inputs were looked for"))
    except WorkerTimedOutError:
        return _without_plan(planned, request, _timed_out(request.timeout, None))
    if isinstance(plan, NoInputs):
        return _without_plan(planned, request, plan.finding)
    state = _state(planned, plan, request)
    if plan.skip:
        return state.skipped()
    if plan.cases:
        _run(planned, plan, request, state, progress, (number, total))
    return state.report()


def _run(
    planned: Planned,
    plan: TargetPlan,
    request: Request,
    state: TargetState,
    progress: Progress,
    place: tuple[int, int],
) -> None:
    try:
        worker = planned.module.worker or planned.module.restart(request)
    except (WorkerDiedError, WorkerTimedOutError) as error:
        how = error.how if isinstance(error, WorkerDiedError) else "did not start in time"
        state.findings.append(_finding("GV902", f"its worker {how}", None))
        return
    since = worker.printed_so_far()
    message = Verify(
        target=planned.target,
        cases=plan.cases,
        settings=state.settings,
        inferred=plan.source is InputSource.INFERRED,
        reference=plan.reference,
        ignore=tuple(code for code, _ in plan.ignore),
    )
    try:
        for event in worker.ask(message, request.timeout):
            if isinstance(event, CaseStarted):
                progress.verifying(planned.target.id, *place, event.case_id)
            state.add(event, worker.printed(since))
    except WorkerDiedError as died:
        doing = "it was verified"
        state.findings.append(_crashed(planned, died, state.running, doing, worker, since))
        planned.module.close()
    except WorkerTimedOutError:
        finding = _timed_out(request.timeout, state.running)
        state.findings.append(replace(finding, captured=worker.printed(since)))
        planned.module.close()


def _state(planned: Planned, plan: TargetPlan, request: Request) -> TargetState:
    seed = request.settings.seed if request.seed is None else request.seed
    if request.seed is None and planned.module.spec is not None:
        seed = planned.module.spec.defaults.seed
    settings = replace(request.settings, seed=seed, rtol=plan.rtol, atol=plan.atol)
    return TargetState(planned.target, plan, settings, request.extra_arguments)


def _without_plan(planned: Planned, request: Request, finding: Finding) -> TargetReport:
    plan = TargetPlan(planned.target.name, planned.target.attribute, InputSource.NONE)
    state = _state(planned, plan, request)
    state.findings.append(finding)
    report = state.report()
    return replace(report, reason=finding.message if finding.code == "GV001" else report.reason)


def _crashed(
    planned: Planned,
    died: WorkerDiedError,
    running: CaseStarted | None,
    doing: str,
    worker: Worker | None = None,
    since: int = 0,
) -> Finding:
    printed = worker.printed(since) if worker is not None else ""
    place = _fault_location(printed, planned)
    user_output = printed.partition("Fatal Python error")[0].rstrip()
    made = _finding("GV901", f"the process {died.how} while {doing}", running)
    return replace(
        made,
        hint="Memory is read or written out of bounds, or the code exits the process: run the reproducing "
        "command under a debugger, or with CUDA_LAUNCH_BLOCKING=1 on a GPU.",
        captured=user_output,
        location=place,
    )


def _timed_out(limit: float, running: CaseStarted | None) -> Finding:
    made = _finding("GV902", f"it was not verified within {limit:g} s", running)
    return replace(
        made, hint="An endless loop, or sizes that are too large: use smaller ones, or a longer --timeout."
    )


def _finding(code: str, message: str, running: CaseStarted | None) -> Finding:
    case = CasePoint(running.case_id, point=running.point, draw=running.draw) if running is not None else None
    return Finding(code, rule(code).severity, message, case=case)


def _fault_location(printed: str, planned: Planned) -> Location | None:
    """The innermost frame of the user's module in what faulthandler wrote."""
    own = str(planned.module.path)
    for match in _FAULT_FRAME.finditer(printed):
        if match["file"] == own:
            return Location(planned.target.file, int(match["line"]))
    return None
