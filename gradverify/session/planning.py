"""What would be done to each target: its plan from the spec, or inputs to be inferred.

Cases whose tensors cannot fit into memory: known before anything is run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gradverify.cases.further import COPIES, bytes_of, tensor_bytes, with_cases
from gradverify.cases.past import BLOCK_OF_THREADS
from gradverify.deduced import Attempt, Deduced
from gradverify.errors import SpecError, UsageError
from gradverify.events import Infer, Inferred, NotInferred
from gradverify.model import (
    SEVERAL_RANKS,
    Case,
    CasePoint,
    Effort,
    Finding,
    InputSource,
    Target,
    TargetPlan,
    memory_text,
    tensors_of,
)
from gradverify.rules import RULES, rule
from gradverify.session.memory import all_bytes
from gradverify.session.modules import Module
from gradverify.session.programs import own_program_of, record_command
from gradverify.session.request import Request
from gradverify.session.selection import select_cases, select_named
from gradverify.session.worker_ended import WorkerBrokenError, WorkerError
from gradverify.source import communicates, functions_of, size_constants, thresholds
from gradverify.spec.draft import entry_to_fill_in, function_of, shown
from gradverify.spec.left_out import OPEN_SIZES
from gradverify.spec.plan import plan_deduced, plan_function
from gradverify.spec.read import SpecFile


def fitting(plan: TargetPlan, request: Request) -> tuple[TargetPlan, tuple[Finding, ...]]:
    """The plan without the cases that cannot fit, and a GV903 for each of those that its spec asks for."""
    on_cpu = not request.settings.device.startswith("cuda")
    limit = request.memory << 20 or (all_bytes() if on_cpu else 0)
    if plan.asked is None:
        return plan, ()
    small = with_cases(plan, replace(plan.asked, memory=limit))
    whose = "that --memory allows" if request.memory else "of this machine"
    too_large = (case for case in plan.cases if limit and COPIES * bytes_of(case) > limit)
    return small, tuple(_too_large(case, f"{memory_text(limit)} {whose}") for case in too_large)


def _too_large(case: Case, limit: str) -> Finding:
    largest = max((t for one in case.inputs for t in tensors_of(one)), key=tensor_bytes)
    of_one, needed = memory_text(bytes_of(case)), memory_text(COPIES * bytes_of(case))
    shape = ", ".join(map(str, largest.shape))
    return Finding(
        "GV903",
        rule("GV903").severity,
        f"the inputs of case {case.id} take {of_one} (`{largest.name}` is [{shape}]): verifying it needs at "
        f"least {needed}, more than the {limit}",
        case=CasePoint(case.id, case.sizes, case.options),
        hint="Use smaller sizes: most mistakes of a backward show at small sizes, too.",
    )


NOT_INFERRED = "no spec names it (--no-infer)"

ON_RANKS = "how its tensors lie on several ranks only a spec can say"


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
    """The selected targets of a module in source order, those that no name leads to at the end.

    Raises `UsageError` for a name or a case that does not exist.
    """
    if module.error is not None:
        return []
    planned: dict[str, Planned] = {}
    for selection in module.selections:
        offered = tuple(module.bound.values()) if selection.of_spec else module.targets
        for target in select_named(offered, selection.name, module.shown_path):
            planned[target.name] = _plan(module, target, selection.case, request)
    # What no name leads to comes last: the others may apply it.
    return sorted(planned.values(), key=lambda p: (p.target.unreached, p.target.line, p.target.name))


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
    if planned.target.unreached:
        return NoInputs(_unreached(planned.target))
    if not request.infer:
        return NoInputs(Finding("GV001", rule("GV001").severity, NOT_INFERRED))
    found = deduce_inputs(planned, request)
    if not isinstance(found, Deduced):
        return NoInputs(_no_inputs(planned, found))
    return plan_from(planned, found, request)


def plan_from(planned: Planned, found: Deduced, request: Request) -> TargetPlan:
    """The plan of an entry deduced just now: that of a spec which says the same, but for its source."""
    function = planned.module.deduced[planned.target.name]
    plan = plan_deduced(
        function,
        seed=seed_of(request, planned.module.spec),
        rtol=request.settings.rtol if request.rtol is None else request.rtol,
        atol=request.settings.atol if request.atol is None else request.atol,
        parameters=planned.target.parameters,
        effort=_effort(planned.case_filter, request),
    )
    left_out = (*plan.left_out, *_without(planned.module))
    plan = _with_cases(plan, planned.module, planned.target, planned.case_filter, request)
    return replace(
        plan,
        attribute=planned.target.attribute,
        doubts=found.doubts,
        remarks=found.remarks,
        never=found.never,
        shown=shown(found.spec),
        left_out=left_out,
    )


def _without(module: Module) -> Iterator[str]:
    """What a module was imported without, as something left out."""
    return (f"imported without {one}" for one in module.without)


def deduce_inputs(planned: Planned, request: Request) -> Deduced | tuple[Attempt, ...]:
    """The entry of a spec that the worker deduces for a target, or the attempts that failed.

    Raises `WorkerError`.
    """
    why = communicates(planned.module.source, planned.target)
    if why:
        entry = json.dumps({planned.target.name: entry_to_fill_in(planned.target, on_ranks=True)})
        write = f"Write a spec, with its placements: functions: {entry}; see docs/distributed.md."
        return (Attempt(ON_RANKS, why, write.replace('"', "")),)
    worker = planned.module.running(request)
    found: Deduced | tuple[Attempt, ...] = ()
    asked = Infer(planned.target, device=request.settings.device)
    for event in worker.ask(asked, request.timeout, request.memory):
        match event:
            case Inferred():
                found = event.deduced
            case NotInferred():
                found = event.attempts
            case _:
                raise ValueError(f"unexpected event {type(event).__name__}")
    return _sayable(planned, found)


def _sayable(planned: Planned, found: Deduced | tuple[Attempt, ...]) -> Deduced | tuple[Attempt, ...]:
    """What was deduced, kept as its spec has it, or why no spec can say it: no mistake of the user's."""
    if not isinstance(found, Deduced):
        return found
    name = planned.target.name
    try:
        planned.module.deduced[name] = function_of(name, found.spec, [r.code for r in RULES])
    except SpecError as error:
        why = "; ".join(m.message for m in error.problems)
        return (Attempt("inputs that work were found", f"no spec can say them: {why}"),)
    return found


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
        return Planned(module, target, None, case_filter)
    key = next(f.key for f in module.functions if f.name == target.name)
    plan = plan_function(
        module.spec,
        key,
        seed=seed_of(request, module.spec),
        rtol=request.rtol,
        atol=request.atol,
        configured=(request.settings.rtol, request.settings.atol),
        parameters=target.parameters,
        effort=_effort(case_filter, request),
    )
    why = communicates(module.source, target) if plan.ranks is None else ""
    if why:
        one = f"{SEVERAL_RANKS}: {why}, and the spec has no `world_size`"
        plan = replace(plan, left_out=(*plan.left_out, one))
    if plan.skip and case_filter:
        raise UsageError(f"{target.id} is skipped by its spec ({plan.skip}): it has no cases")
    plan = replace(plan, left_out=(*plan.left_out, *_without(module)))
    if not plan.skip:
        if request.settings.device != "cpu" and plan.open_sized:
            plan = replace(plan, left_out=(OPEN_SIZES, *plan.left_out))
        plan = _with_cases(plan, module, target, case_filter, request)
    return Planned(module, target, plan, case_filter)


def _with_cases(
    plan: TargetPlan, module: Module, target: Target, case_filter: str, request: Request
) -> TargetPlan:
    """The plan with the cases that its module's source asks for, of those that a filter selects.

    Raises `UsageError` where it selects none.
    """
    if plan.asked is None:
        return plan
    on_cpu = request.settings.device == "cpu"
    unlisted = (*plan.open_sized, *plan.degenerate) if on_cpu and not plan.asked.inferred else ()
    select_cases((*plan.cases, *unlisted), case_filter, target.id)
    constants = size_constants(module.source, target.attribute, module.path)
    asked = replace(
        plan.asked,
        thresholds=tuple(thresholds(module.source, target.attribute)),
        constants=(*constants, *((BLOCK_OF_THREADS,) if target.compiled else ())),
        selected=case_filter,
        on_cpu=on_cpu,
    )
    return with_cases(plan, asked)


def _effort(case_filter: str, request: Request) -> Effort:
    """Whoever names a case wants that one, and not the base case alone."""
    effort = request.settings.effort
    return Effort.NORMAL if case_filter and effort is Effort.QUICK else effort


def _unreached(target: Target) -> Finding:
    inner = "<locals>" in target.name
    why = "it is defined while a function runs" if inner else "its own name stands for something else there"
    entry = f"functions: {{{target.name}: {{skip: the reason}}}}"
    return Finding(
        "GV001",
        rule("GV001").severity,
        f"no name of the module leads to it: {why}",
        hint=f"Bind the class or its `apply` to a name of the module, or verify what applies it: name that "
        f"in a spec. A spec leaves it out with {entry}.",
    )


def _no_inputs(planned: Planned, attempts: tuple[Attempt, ...]) -> Finding:
    target = planned.target
    known = attempts[0].inputs if attempts else ()
    entry = json.dumps(entry_to_fill_in(target, known=known)).replace('"', "")
    furthest = f"; {attempts[0].arguments}: {attempts[0].answer}" if attempts else ""
    program = own_program_of(target, planned.module.source) or "python your_program.py"
    module = Path(target.file).name
    write = (
        f"`{record_command(target, program)}` writes a spec from calls that really occur; "
        f"or write one: {{module: {module}, functions: {{{target.name}: {entry}}}}}, with its "
        "shapes (`gradverify init` makes the file)."
    )
    return Finding(
        "GV001",
        rule("GV001").severity,
        f"no spec names it and no inputs could be inferred{furthest}",
        hint=_legacy(planned) or next((a.missing for a in attempts if a.missing), write),
    )


def _legacy(planned: Planned) -> str:
    """What to do with a Function that keeps its options on an instance, as none has been since torch 1.5."""
    target = planned.target
    function = {f.name: f for f in functions_of(planned.module.source)}.get(target.attribute)
    forward = function.forward if function is not None else None
    if function is None or forward is None or forward.is_static or function.of_instances is None:
        return ""
    return (
        f"torch has not made an instance of such a Function since 1.5, so no inputs help: make forward and "
        f"backward static, with ctx, and give what `__init__` takes as arguments of `{target.name}.apply`."
    )
