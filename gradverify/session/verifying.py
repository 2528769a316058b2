"""One target through its worker: events in, report out; a dead worker is a finding."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gradverify.model import (
    Case,
    Effort,
    Finding,
    InputSource,
    Mutation,
    MutationOutcome,
    Settings,
    Severity,
    TargetPlan,
    TargetReport,
    TensorInput,
    Verdict,
)
from gradverify.rules import rule
from gradverify.session.aggregate import TargetState
from gradverify.session.budget import run_within_budget
from gradverify.session.costing import fitting
from gradverify.session.dumping import dumped
from gradverify.session.ended import finding_of
from gradverify.session.modules import FOR_A_BUG, NotImportedAgainError
from gradverify.session.mutating import plant_all
from gradverify.session.outcome import NOT_VERIFIED
from gradverify.session.planning import NoInputs, Planned, infer_plan, seed_of
from gradverify.session.request import Request, TargetProgress
from gradverify.session.shrinking import REFUSED, shrunk
from gradverify.session.static_findings import static_findings
from gradverify.session.traces import spot
from gradverify.session.worker_errors import (
    WorkerBrokenError,
    WorkerDisturbedError,
    WorkerError,
    WorkerTimedOutError,
    WorkerTooBigError,
)
from gradverify.source import uses_complex
from gradverify.spec.read import SpecFile

OTHER_INPUTS = "Give it valid inputs in a spec, in an entry of its own: `Name@other:` with `target: Name`."
"""What is said of an option that the inferred inputs do not suit."""

MOST_SHAPES = 4
"""Declared shapes that are told of a refusal."""


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
        told = (_with_declared_shapes(finding, planned, plan.cases) for finding in report.findings)
        judged = Judged(replace(report, findings=tuple(told)))
    return replace(judged, report=dumped(judged.report, planned, state, request))


def _with_declared_shapes(finding: Finding, planned: Planned, cases: tuple[Case, ...]) -> Finding:
    """A refusal with the shapes that the spec declares in its hint; any other finding as it is."""
    spec = planned.module.spec
    case = next((c for c in cases if finding.case and c.id == finding.case.id), None)
    function = next((f for f in planned.module.functions if f.name == planned.target.name), None)
    if finding.code != REFUSED or spec is None or case is None or function is None:
        return finding
    shapes = [
        f"`{i.name}: {text}` is {list(i.shape)} ({spec.shown_path}:{line})"
        for i in case.inputs
        if isinstance(i, TensorInput)
        for text, line in _declared(spec, function.key, i.name)
    ]
    told = ", ".join(shapes[:MOST_SHAPES])
    return replace(finding, hint=f"{finding.hint} At {case.id}, {told}.") if shapes else finding


def _declared(spec: SpecFile, key: str, name: str) -> list[tuple[str, int]]:
    """The shape of an input as its spec writes it, and the line of it; empty where it writes none."""
    data: object = spec.document.data
    for part in ("functions", key, "inputs", name):
        data = data.get(part) if isinstance(data, dict) else None
    shape = data.get("shape") if isinstance(data, dict) else data
    if not isinstance(shape, list):
        return []
    return [(f"[{', '.join(map(str, shape))}]", spec.document.line_of(("functions", key, "inputs", name)))]


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
        of_complex_use=uses_complex(planned.module.source, planned.target.attribute),
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
        case _:
            state.findings.append(finding_of(planned, state, error, request))
    return Judged(state.report())


def _ended_beyond(state: TargetState, error: WorkerError) -> TargetState:
    """A case past a constant, which nobody asked for, has ended the process: what is verified stands."""
    limited = isinstance(error, WorkerTimedOutError | WorkerTooBigError)
    how = "it takes too long or too much memory" if limited else f"the process {error.how}"
    if state.beyond is not None and (state.doubted or not limited):
        doubt = "probes do not agree with backward, and to say where " if state.doubted else ""
        message = f"at {state.beyond.case.id}, backward could not be verified: {doubt}{how}"
        hint = "If such a size is not valid, forbid it with `where:` in the spec, or raise an exception."
        state.findings.append(Finding("GV109", rule("GV109").severity, message, hint))
    state.end_beyond(how)
    return state
