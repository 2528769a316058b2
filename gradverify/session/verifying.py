"""One target through its worker: events in, report out; a dead worker is a finding."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gradverify.cases.further import without_cases
from gradverify.events import CaseStarted, DiagnosisStarted, Event, Found, Verify
from gradverify.model import (
    Case,
    Effort,
    Finding,
    InputSource,
    Settings,
    Severity,
    TargetPlan,
    TargetReport,
    TensorInput,
    Verdict,
)
from gradverify.session.aggregate import TargetState, static_findings
from gradverify.session.ended import take_end
from gradverify.session.outcome import INCONCLUSIVE_CODES, NOT_VERIFIED, UNCHECKED_CODES
from gradverify.session.planning import NoInputs, Planned, fitting, infer_plan, seed_of
from gradverify.session.programs import own_program_of, record_command
from gradverify.session.request import Request, TargetProgress
from gradverify.session.worker_ended import WorkerError
from gradverify.source import uses_complex
from gradverify.spec.read import SpecFile

MOST_SHAPES = 4
"""Declared shapes that are reported of a refusal."""

REFUSED = "GV002"
"""The code of a forward that raises."""

NOT_GREEN = UNCHECKED_CODES | INCONCLUSIVE_CODES
"""Codes that no verified target has, whatever their severity."""


@dataclass(frozen=True)
class Judged:
    """What became of one target."""

    report: TargetReport
    bug: str = ""
    """The traceback of gradverify's own failure, empty where it had none."""
    applied: frozenset[tuple[str, str]] = frozenset()
    """(file, qualified name) of the Functions that its calls have applied."""


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
    judged = _verified(planned, request, progress, beside_another=True)
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
            _run(planned, small, request, state, progress)
        report = state.report()
    except WorkerError as error:
        planned.module.close()
        bug = take_end(planned, state, error, request)
        return Judged(state.report(), bug)
    reported = (_with_declared_shapes(finding, planned, plan.cases) for finding in report.findings)
    report = _with_own_program(replace(report, findings=tuple(reported)), planned)
    return Judged(report, applied=state.applied)


def _run(
    planned: Planned, plan: TargetPlan, request: Request, state: TargetState, progress: TargetProgress
) -> None:
    """Let the worker verify what a plan says of a target, and take in what it answers.

    Raises `WorkerError`.
    """
    worker = planned.module.running(request)
    asked = Verify(planned.target, without_cases(plan), state.settings)
    for event in worker.ask(asked, request.timeout, request.memory):
        state.add(event, worker.printed)
        if state.beside_another and _decides(event):
            planned.module.close()  # its worker is in the middle of an answer
            return
        _tell(event, planned, progress)


def _tell(event: Event, planned: Planned, progress: TargetProgress) -> None:
    """What whoever waits should know before the report: an error is certain once it is found."""
    match event:
        case CaseStarted(case_id=case_id):
            progress.at(case_id)
        case DiagnosisStarted():
            progress.at("looking for the cause")
        case Found(finding=finding) if finding.severity is Severity.ERROR:
            if planned.plan is None or not planned.plan.expected_failures:
                progress.found(finding)
        case _:
            pass


def _decides(event: Event) -> bool:
    """Whether a target does not pass with this."""
    found = event.finding if isinstance(event, Found) else None
    return found is not None and (found.severity is Severity.ERROR or found.code in NOT_GREEN)


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
    reported = ", ".join(shapes[:MOST_SHAPES])
    return replace(finding, hint=f"{finding.hint} At {case.id}, {reported}.") if shapes else finding


def _with_own_program(report: TargetReport, planned: Planned) -> TargetReport:
    """Where guessed inputs leave a target open, with the program of the user's own that has valid ones."""
    doubts = [k for k, f in enumerate(report.findings) if f.code == "GV109" and not f.cause]
    if report.status is not Verdict.INCONCLUSIVE or report.inputs is not InputSource.INFERRED or not doubts:
        return report
    program = own_program_of(planned.target, planned.module.source)
    if not program:
        return report
    command = record_command(planned.target, program)
    findings, first = list(report.findings), doubts[0]
    hint = f"{findings[first].hint} `{command}` writes a spec from calls that really occur.".lstrip()
    findings[first] = replace(findings[first], hint=hint)
    return replace(report, findings=tuple(findings))


def _declared(spec: SpecFile, key: str, name: str) -> list[tuple[str, int]]:
    """The shape of an input as its spec writes it, and the line of it; empty where it writes none."""
    data: object = spec.document.data
    for part in ("functions", key, "inputs", name):
        data = data.get(part) if isinstance(data, dict) else None
    shape = data.get("shape") if isinstance(data, dict) else data
    if not isinstance(shape, list):
        return []
    return [(f"[{', '.join(map(str, shape))}]", spec.document.line_of(("functions", key, "inputs", name)))]


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
    )


def _of_guesses(plan: TargetPlan, settings: Settings) -> list[Finding]:
    """What is to be said of inferred inputs before any of them is tried."""
    reported = [Finding("GV107", Severity.NOTE, sentence, input=name) for name, sentence in plan.remarks]
    reported += [
        Finding("GV109", Severity.WARNING, f"inputs inferred: {sentence}", hint=hint, input=name)
        for name, sentence, hint in plan.never
    ]
    ignored = (*settings.ignore, *(code for code, _ in plan.ignore))
    return [found for found in reported if not found.code.startswith(ignored)]
