"""What would be done to each target: its plan from the spec, or inputs to be inferred."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gradverify.errors import UsageError
from gradverify.events import Infer, Inferred, NotInferred
from gradverify.model import Case, Effort, Finding, InputSource, RaisedError, Target, TargetPlan
from gradverify.rules import rule
from gradverify.session.modules import Module
from gradverify.session.pool import WorkerBrokenError, WorkerError
from gradverify.session.request import Request
from gradverify.session.selection import select_cases, select_named
from gradverify.spec import SpecFile, case_seed, plan_function, resized

INFERRED_CASE = "base"
"""The one case of a target without a spec."""

NOT_INFERRED = "no spec names it (--no-infer)"


@dataclass(frozen=True)
class Planned:
    """A target that is selected, with its plan; `plan` is None until its inputs are inferred."""

    module: Module
    target: Target
    plan: TargetPlan | None
    case_filter: str = ""
    """What the command line limits it to; empty for every case."""


@dataclass(frozen=True)
class NoInputs:
    """Why no inputs are known for a target: the finding to report."""

    finding: Finding


def plan_targets(module: Module, request: Request) -> list[Planned]:
    """The selected targets of a module in source order.

    Raises `UsageError` for a name or a case that does not exist.
    """
    if module.error is not None:
        return []
    planned: dict[str, Planned] = {}
    for selection in module.selections:
        for target in select_named(module.targets, selection.name, module.shown_path):
            planned[target.name] = _plan(module, target, selection.case, request)
    return sorted(planned.values(), key=lambda p: (p.target.line, p.target.name))


def seed_of(request: Request, spec: SpecFile | None) -> int:
    """The seed of a module: the command line's, else its spec's, else the configuration's."""
    if request.seed is not None:
        return request.seed
    declared = spec is not None and "seed" in spec.defaults.model_fields_set
    return spec.defaults.seed if spec is not None and declared else request.settings.seed


def infer_plan(planned: Planned, request: Request) -> TargetPlan | NoInputs:
    """Let the worker look for inputs of a target without a spec.

    Raises `WorkerError`.
    """
    if not request.infer:
        return NoInputs(Finding("GV001", rule("GV001").severity, NOT_INFERRED))
    worker = planned.module.running(request)
    inputs = None
    attempts: tuple[tuple[str, RaisedError], ...] = ()
    for event in worker.ask(Infer(planned.target), request.timeout, request.memory):
        match event:
            case Inferred():
                inputs = event.inputs
            case NotInferred():
                attempts = event.attempts
            case _:
                raise ValueError(f"unexpected event {type(event).__name__}")
    if inputs is None:
        return NoInputs(_no_inputs(planned.target, attempts))
    seed = seed_of(request, planned.module.spec)
    case = Case(INFERRED_CASE, case_seed(seed, planned.target.name, INFERRED_CASE), inputs=inputs)
    return TargetPlan(
        name=planned.target.name,
        attribute=planned.target.attribute,
        source=InputSource.INFERRED,
        cases=(case,),
        # At sizes that nobody declared a kernel may leave its tensors: on a GPU that spoils every later call.
        spares=resized(case) if request.settings.device == "cpu" else (),
        rtol=request.settings.rtol if request.rtol is None else request.rtol,
        atol=request.settings.atol if request.atol is None else request.atol,
    )


def plan_or_reason(planned: Planned, request: Request) -> TargetPlan | NoInputs:
    """The plan of a target, inferring it where there is no spec; for listings."""
    if planned.plan is not None:
        return planned.plan
    try:
        return infer_plan(planned, request)
    except WorkerBrokenError as error:
        planned.module.bug = error.how
        message = "gradverify itself failed while it looked for inputs, which is a bug of ours"
    except WorkerError as error:
        message = f"while inputs were looked for, the process {error.how}"
    return NoInputs(Finding("GV001", rule("GV001").severity, message))


def _plan(module: Module, target: Target, case_filter: str, request: Request) -> Planned:
    if module.source_of(target) is InputSource.INFERRED or module.spec is None:
        select_cases((Case(INFERRED_CASE, 0),), case_filter, target.id)
        return Planned(module, target, None, case_filter)
    key = next(f.key for f in module.functions if f.name == target.name)
    plan = plan_function(
        module.spec,
        key,
        seed=seed_of(request, module.spec),
        rtol=request.rtol,
        atol=request.atol,
        parameters=target.parameters,
        effort=_effort(case_filter, request),
    )
    plan = _with_configured_tolerance(plan, module.spec, key, request)
    if plan.skip and case_filter:
        raise UsageError(f"{target.id} is skipped by its spec ({plan.skip}): it has no cases")
    cases = plan.cases if plan.skip else select_cases(plan.cases, case_filter, target.id)
    return Planned(module, target, replace(plan, cases=cases), case_filter)


def _effort(case_filter: str, request: Request) -> Effort:
    """Whoever names a case wants that one, and not the base case alone."""
    effort = request.settings.effort
    return Effort.NORMAL if case_filter and effort is Effort.QUICK else effort


def _with_configured_tolerance(plan: TargetPlan, spec: SpecFile, key: str, request: Request) -> TargetPlan:
    """Where neither the command line nor the spec says how exact, the configuration may."""
    function, defaults = spec.functions[key], spec.defaults.model_fields_set
    rtol_is_free = request.rtol is None and function.rtol is None and "rtol" not in defaults
    atol_is_free = request.atol is None and function.atol is None and "atol" not in defaults
    return replace(
        plan,
        rtol=request.settings.rtol if rtol_is_free else plan.rtol,
        atol=request.settings.atol if atol_is_free else plan.atol,
    )


def _no_inputs(target: Target, attempts: tuple[tuple[str, RaisedError], ...]) -> Finding:
    names = ", ".join(f"{p.name}: [n, d]" for p in target.parameters if not p.has_default)
    described, error = attempts[0] if attempts else ("", None)
    tried = f": tried {len(attempts)} guesses" if attempts else ""
    answer = f"; with {described} forward raised {error.type}" if error is not None else ""
    return Finding(
        "GV001",
        rule("GV001").severity,
        f"no spec names it and no inputs could be inferred{tried}{answer}",
        hint=f"Write a spec: functions: {{{target.name}: {{inputs: {{{names}}}}}}}, with its shapes.",
        raised=error,
    )
