"""One target through its worker: events in, report out; a dead worker is a finding."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gradverify.events import CaseStarted
from gradverify.lint import is_of_complex_use
from gradverify.model import (
    CasePoint,
    Effort,
    Finding,
    Frame,
    InputSource,
    Mutation,
    MutationOutcome,
    RaisedError,
    Settings,
    Severity,
    TargetPlan,
    TargetReport,
    Verdict,
)
from gradverify.rules import rule
from gradverify.session.aggregate import TargetState
from gradverify.session.beside import static_findings
from gradverify.session.budget import run_within_budget
from gradverify.session.costing import cost_of, enough_time
from gradverify.session.declared_shapes import with_declared_shapes
from gradverify.session.dumping import dumped
from gradverify.session.memory import fitting
from gradverify.session.modules import FOR_A_BUG, NotImportedAgainError
from gradverify.session.mutating import plant_all
from gradverify.session.outcome import NOT_VERIFIED
from gradverify.session.planning import NoInputs, Planned, infer_plan, seed_of
from gradverify.session.pool import (
    WorkerBrokenError,
    WorkerDeviceLostError,
    WorkerDisturbedError,
    WorkerError,
    WorkerLostError,
    WorkerTimedOutError,
    WorkerTooBigError,
)
from gradverify.session.request import Request, TargetProgress
from gradverify.session.shrinking import shrunk
from gradverify.session.traces import fatal_error, frames_of, spot

OTHER_INPUTS = "Give it valid inputs in a spec, in an entry of its own: `Name@other:` with `target: Name`."
"""What is said of an option that the inferred inputs do not suit."""

_METHODS = ("forward", "backward", "setup_context", "vjp", "jvp")
"""Methods of a Function that a crash can happen in."""


@dataclass(frozen=True)
class Judged:
    """What became of one target."""

    report: TargetReport
    bug: str = ""
    """The traceback of gradverify's own failure, empty where it had none."""


def timed_verification(planned: Planned, request: Request, progress: TargetProgress) -> Judged:
    """Verify one target, with the time that it took where durations were asked for."""
    since = request.clock()
    judged = verify_target(planned, request, progress)
    if request.slowest is None:
        return judged
    return replace(judged, report=replace(judged.report, duration_s=round(request.clock() - since, 3)))


def verify_target(planned: Planned, request: Request, progress: TargetProgress) -> Judged:
    """Verify one target. Whatever its code does costs at most its own verdict.

    One that is not verified where an earlier target has left something behind is asked again without that.
    """
    worker = planned.module.worker
    if worker is None or not worker.alive or not worker.touched:
        return _verified(planned, request, progress)
    judged = _verified(planned, replace(request, dump=None), progress, beside_another=True)
    if judged.report.status not in NOT_VERIFIED:
        return judged
    planned.module.close()
    return _verified(planned, request, progress)


def _verified(
    planned: Planned, request: Request, progress: TargetProgress, *, beside_another: bool = False
) -> Judged:
    """Verify it once; where an earlier target may be the reason of what is found, no further than that."""
    progress.at("")
    state = _state(planned, None, request)
    try:
        plan = planned.plan if planned.plan is not None else infer_plan(planned, request)
        if isinstance(plan, NoInputs):
            state.findings.append(plan.finding)
            state.unchecked_because = plan.finding.message
            return Judged(state.report())
        state = replace(_state(planned, plan, request), beside_another=beside_another)
        state.findings += _of_guesses(plan, state.settings)
        reason = plan.skip or _not_for(plan, state.settings.device)
        if reason:
            return Judged(state.skipped(reason))
        small, too_large = fitting(plan, request)
        state.findings += too_large
        if small.cases:
            run_within_budget(planned, small, request, state, progress)
        report = state.report()
        if request.mutate and report.status is Verdict.PASSED:
            report = _mutated(report, plant_all(planned, plan, state.settings, request), state.settings)
    except WorkerError as error:
        planned.module.close()
        judged = _without_worker(planned, state, error, request)
    else:
        progress.at("looking for smaller inputs" if report.status is Verdict.FAILED else "")
        report = shrunk(report, planned, state, request)
        told = (with_declared_shapes(finding, planned, plan.cases) for finding in report.findings)
        judged = Judged(replace(report, findings=tuple(told)))
    return replace(judged, report=dumped(judged.report, planned, state, request))


def _mutated(report: TargetReport, mutations: tuple[Mutation, ...], settings: Settings) -> TargetReport:
    """The report with what became of the planted faults; under --strict, one that escapes fails it."""
    escaped = sum(m.outcome is MutationOutcome.ESCAPED for m in mutations)
    report = replace(report, mutations=mutations)
    if not (escaped and settings.strict):
        return report
    which = "a planted fault" if escaped == 1 else f"{escaped} planted faults"
    return replace(report, status=Verdict.FAILED, reason=f"its checks do not notice {which} (--strict)")


def _not_for(plan: TargetPlan, device: str) -> str:
    """Why a target is not verified on a device; empty where it is."""
    if not plan.devices or device.partition(":")[0] in plan.devices:
        return ""
    return f"its spec limits it to {' and '.join(plan.devices)}"


def _device(planned: Planned, plan: TargetPlan, request: Request) -> str:
    """The device whose gradients are verified; those of the others are held against them."""
    limited = bool(plan.devices) and "cpu" not in plan.devices
    if request.settings.every_device and limited and planned.module.cuda_devices:
        return "cuda:0"
    return request.settings.device


def _state(planned: Planned, plan: TargetPlan | None, request: Request) -> TargetState:
    if plan is None:
        plan = TargetPlan(planned.target.name, planned.target.attribute, InputSource.NONE)
    settings = replace(
        request.settings,
        seed=seed_of(request, planned.module.spec),
        rtol=plan.rtol,
        atol=plan.atol,
        device=_device(planned, plan, request),
    )
    return TargetState(
        planned.target,
        plan,
        settings,
        planned.module.path,
        request.extra_arguments,
        filtered=bool(planned.case_filter) or settings.effort is Effort.QUICK,
        today=request.today,
        static=static_findings(planned.module, planned.target),
        of_complex_use=is_of_complex_use(planned.module.source, planned.target.attribute),
        known=tuple(
            k for k in request.known if (k.module, k.name) == (planned.module.path, planned.target.name)
        ),
    )


def _of_guesses(plan: TargetPlan, settings: Settings) -> list[Finding]:
    """What is to be said of inferred inputs before any of them is tried."""
    told = [Finding("GV107", Severity.NOTE, sentence, input=name) for name, sentence in plan.remarks]
    told += [
        Finding("GV109", Severity.WARNING, f"inputs inferred: {sentence}", hint=OTHER_INPUTS, input=name)
        for name, sentence in plan.never
    ]
    ignored = (*settings.ignore, *(code for code, _ in plan.ignore))
    return [found for found in told if not found.code.startswith(ignored)]


def _without_worker(planned: Planned, state: TargetState, error: WorkerError, request: Request) -> Judged:
    """What to say of a target whose worker owes an answer."""
    if state.diagnosing and not isinstance(error, WorkerBrokenError):
        state.leave_out(f"the search for a cause: the process {error.how}")
        return Judged(state.report())
    if state.beyond is not None and not isinstance(error, WorkerBrokenError):
        return Judged(_ended_beyond(state, error).report())
    match error:
        case WorkerBrokenError():
            state.unchecked_because = FOR_A_BUG
            return Judged(state.report(), error.how)
        case NotImportedAgainError():
            state.unchecked_because = (
                f"after an earlier target had ended its process, the module could not be imported again: "
                f"it {error.how}"
            )
        case WorkerDisturbedError():
            frames = error.raised.frames if error.raised is not None else ()
            place = f" ({spot(frames[-1], planned.module.path)})" if frames else ""
            state.unchecked_because = (
                f"its process {error.how}{place}, after which nothing in it can be believed"
            )
        case WorkerTooBigError():
            state.findings.append(_too_big(planned, state, error, request))
        case WorkerTimedOutError():
            state.findings.append(_timed_out(planned, state, error, request))
        case WorkerDeviceLostError():
            state.findings.append(_device_lost(state, error))
        case WorkerLostError():
            state.findings.append(_crashed(planned, state, error))
        case _:
            state.findings.append(_ended(planned, state, error))
    return Judged(state.report())


def _ended_beyond(state: TargetState, error: WorkerError) -> TargetState:
    """A case past a constant, which nobody asked for, has ended the process: what is verified stands."""
    limited = isinstance(error, WorkerTimedOutError | WorkerTooBigError)
    how = "it takes too long or too much memory" if limited else f"the process {error.how}"
    if state.beyond is not None and (state.doubted or not limited):
        doubt = "probes do not agree with backward, and to say where " if state.doubted else ""
        message = f"at {state.beyond.case.id}, backward could not be verified: {doubt}{how}"
        hint = "If such a size is not valid, forbid it with `where:` in the spec, or raise an exception."
        state.findings.append(replace(_finding("GV109", message, None), hint=hint))
    state.end_beyond(how)
    return state


def _ended(planned: Planned, state: TargetState, error: WorkerError) -> Finding:
    """Of a process that has ended: a mistake, unless a guess may have made it."""
    inferred = state.plan.source is InputSource.INFERRED
    invented = inferred and any(not d.intent and not d.extreme for d in state.plan.doubts)
    if _ended_otherwise(error) or not (invented or state.plan.source is InputSource.NONE):
        return _crashed(planned, state, error)
    return _crashed_on_guesses(planned, state, error, "GV109" if invented else "GV001")


def _crashed(planned: Planned, state: TargetState, error: WorkerError) -> Finding:
    frames = frames_of(error.trace, planned.module.path)
    said = ""
    if isinstance(error, WorkerLostError):
        hint = "The code closes descriptors that it has not opened, or writes into them."
    elif "exited" in error.how:
        hint = "Let the code raise an exception instead of ending the process."
    elif "SIGKILL" in error.how:
        hint = "The system does this to a process that takes too much memory: use smaller sizes."
    else:
        hint = (
            "Memory is read or written out of bounds: run the reproducing command under a debugger, or with "
            "CUDA_LAUNCH_BLOCKING=1 on a GPU."
        )
        said = fatal_error(error.trace)
    return replace(
        _finding("GV901", f"the process {error.how} {_doing(state, frames)}", state.running),
        hint=hint,
        captured=error.captured,
        raised=RaisedError(said or "the process ended here", "", frames) if frames else None,
    )


def _ended_otherwise(error: WorkerError) -> bool:
    """Whether a process has ended by itself, or was ended by the system, and not by what it did to memory."""
    return "exited" in error.how or "SIGKILL" in error.how


def _crashed_on_guesses(planned: Planned, state: TargetState, error: WorkerError, code: str) -> Finding:
    """A kernel need not check its arguments: what it does to wrong ones is nobody's mistake."""
    frames = frames_of(error.trace, planned.module.path)
    guessed = [d.what for d in state.plan.doubts if not d.intent and not d.extreme]
    but = f"; but {guessed[0]} was guessed" if guessed else ""
    return replace(
        _finding(code, f"the process {error.how} {_doing(state, frames)}{but}", state.running),
        hint="Guessed arguments that do not go together may make a kernel leave its memory. Write a spec "
        "with valid ones: `gradverify init` writes the file to fill in.",
        captured=error.captured,
        raised=RaisedError(fatal_error(error.trace) or "the process ended here", "", frames)
        if frames
        else None,
    )


def _device_lost(state: TargetState, error: WorkerDeviceLostError) -> Finding:
    """The next target gets another process: in this one every call of the device would fail."""
    raised = error.raised or RaisedError("RuntimeError", "")
    said = raised.message.strip().splitlines()[0] if raised.message.strip() else "no message"
    message = f"the device was lost {_doing(state, raised.frames)}: {raised.type}: {said}"
    return replace(
        _finding("GV901", message, state.running),
        hint="A kernel reads or writes out of bounds, or asserts. Kernels run later than the line that "
        "starts them: set CUDA_LAUNCH_BLOCKING=1 and run the reproducing command, to see which one it is.",
        captured=error.captured,
        raised=raised,
    )


def _timed_out(planned: Planned, state: TargetState, error: WorkerTimedOutError, request: Request) -> Finding:
    frames = frames_of(error.trace, planned.module.path)
    place = f", at {spot(frames[-1], planned.module.path)}" if frames else ""
    message = f"not done within {request.timeout:g} s: it was stopped {_doing(state, frames)}{place}"
    return replace(
        _finding("GV902", message, state.running),
        hint=enough_time(
            error.calls, error.seconds, request.timeout, cost_of(state.plan, state.settings).usual
        ),
        captured=error.captured,
        raised=RaisedError("it was here when it was stopped", "", frames) if frames else None,
    )


def _too_big(planned: Planned, state: TargetState, error: WorkerError, request: Request) -> Finding:
    frames = frames_of(error.trace, planned.module.path)
    place = f", at {spot(frames[-1], planned.module.path)}" if frames else ""
    message = (
        f"it {error.how}, more than the {request.memory} MiB allowed: it was stopped "
        f"{_doing(state, frames)}{place}"
    )
    return replace(
        _finding("GV903", message, state.running),
        hint="Use smaller sizes, or a larger --memory: importing torch alone takes some 200 to 400 MiB.",
        captured=error.captured,
        raised=RaisedError("it was here when it was stopped", "", frames) if frames else None,
    )


def _doing(state: TargetState, frames: tuple[Frame, ...]) -> str:
    """What was going on, as the end of a sentence."""
    method = next((f.function for f in frames if f.function in _METHODS), "")
    where = f"in {method}" if method else "while it was verified"
    if state.plan.source is InputSource.NONE:
        return f"{where}, while inputs for it were looked for" if method else "while inputs were looked for"
    return where


def _finding(code: str, message: str, running: CaseStarted | None) -> Finding:
    case = CasePoint(running.case_id, point=running.point, draw=running.draw) if running is not None else None
    return Finding(code, rule(code).severity, message, case=case)
