"""Findings into files: the inputs are drawn again, so nothing has to be kept while a target is verified."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from gradverify.events import Dump, Dumped
from gradverify.model import Case, CasePoint, Finding, ObjectInput, Target, TargetKind
from gradverify.rules import Family, rule
from gradverify.verifier import guard
from gradverify.verifier.building import Live, build_subject
from gradverify.verifier.checks.random_signs import random_signs
from gradverify.verifier.checks.subject import NoSample, Sample, Subject, arguments_at, prepare
from gradverify.verifier.collect.importing import dotted_name, resolve
from gradverify.verifier.dump import script
from gradverify.verifier.dump.entry import Probe, layout_of, probe
from gradverify.verifier.guard import Raised, default_dtype
from gradverify.verifier.inputs.arguments import Argument, arguments_of_call
from gradverify.verifier.numerics.problem import CallProblem, VjpProblem

SHOWN_BY_DERIVATIVES = (Family.GRADCHECK, Family.GRADGRADCHECK)
"""Families whose findings a central difference shows."""

RAISED = ("GV002", "GV102", "GV901")
"""Findings that are an exception, or the end of the process."""

OF_RETURNS = ("GV103", "GV104", "GV105", "GV106")
"""Findings on what backward returns: torch refuses it, or the gradient that it makes of it is wrong."""

COTANGENT_SEED = 29
"""Offset of the seed from which the comparison with a reference draws its grad_outputs."""


@dataclass(frozen=True)
class _Context:
    """What the files of one finding are made from."""

    request: Dump
    module: ModuleType
    name: str
    finding: Finding
    subject: Subject
    case: Case
    arguments: tuple[Argument, ...]

    @property
    def differentiable(self) -> list[str]:
        """Names of the inputs that are differentiated."""
        return [a.name for a in self.arguments if a.differentiable]

    def sample(self) -> Sample | NoSample:
        """Forward run once at the finding's inputs."""
        at = _told_at(self.finding)
        return NoSample() if at is None else prepare(self.subject, self.case, at.point, at.draw)


def dump(request: Dump, live: Live, module: ModuleType) -> Iterator[Dumped]:
    """Write each finding's inputs, and a script where one can show it."""
    with default_dtype(request.verified.plan.default_dtype):
        for name, finding in request.findings:
            made = guard.call(_dump_one, request, live, module, name, finding)
            if isinstance(made, Raised):
                yield Dumped("", f"{made.error.type}: {made.error.message}")
            else:
                yield made.value


def _dump_one(request: Dump, live: Live, module: ModuleType, name: str, finding: Finding) -> Dumped:
    plan = request.verified.plan
    cases = (*plan.cases, *(b.case for b in plan.beyond))
    point = _told_at(finding)
    case = next((c for c in cases if point is not None and c.id == point.id), None)
    if point is None or case is None:
        return Dumped("", "it was not made on one set of inputs")
    built = build_subject(request.verified, live, case, None)
    if isinstance(built, Finding):
        return Dumped("", built.message)
    subject, case = built
    arguments = arguments_at(subject, case, point.point, point.draw)
    if isinstance(arguments, Raised):
        return Dumped("", "its inputs could not be built")
    context = _Context(request, module, name, finding, subject, case, arguments)
    text, values = _shown(context)
    values["inputs"] = _saved_inputs(case, arguments)
    values["differentiable"] = context.differentiable
    folder = Path(request.folder)
    try:
        torch.save(values, folder / f"{name}.pt")
        torch.load(folder / f"{name}.pt", weights_only=True)
    except Exception as error:  # noqa: BLE001 - whatever pickling the user's own objects raises
        (folder / f"{name}.pt").unlink(missing_ok=True)
        return Dumped("", f"its inputs cannot be saved as tensors and plain values ({type(error).__name__})")
    if not text:
        return Dumped(f"{name}.pt")
    (folder / f"{name}.py").write_text(text, "utf-8", newline="\n")
    return Dumped(f"{name}.py")


def _told_at(finding: Finding) -> CasePoint | None:
    """The inputs that a finding's own words and numbers are of."""
    case = finding.case
    return case.shrunk or case if case is not None else None


def _shown(context: _Context) -> tuple[str, dict[str, Any]]:
    """The script, empty where none can show the finding, and what it loads beside the inputs."""
    finding = context.finding
    head = script.preamble(context.name, _sentences(finding), _called(context))
    if finding.code in RAISED:
        return head + script.raising(), {"twice": _raises_at_second(context)}
    sample = context.sample()
    if isinstance(sample, NoSample):
        return "", {}
    family = rule(finding.code).family
    if finding.raised is None and (family in SHOWN_BY_DERIVATIVES or finding.code in OF_RETURNS):
        return _with_derivative(context, sample, head)
    if finding.code in {"GV301", "GV302"}:
        return _with_reference(context, sample, head)
    return "", {}


def _sentences(finding: Finding) -> list[str]:
    at = _told_at(finding)
    case = f" Case {at.id}, {at.point} values." if at is not None else ""
    return [
        f"{finding.code} {rule(finding.code).name}: {finding.message}.{case}",
        "Shown with torch alone; exit code 1 while it is so. Found by gradverify.",
    ]


def _raises_at_second(context: _Context) -> bool:
    """Whether it takes a double backward to raise: a plain one went through."""
    if context.finding.code not in {"GV102", "GV201", "GV202"}:
        return False
    sample = context.sample()
    if isinstance(sample, NoSample):
        return False
    return not _refused(sample)


def _refused(sample: Sample) -> bool:
    """Whether a plain backward raises."""
    layout = sample.problem.outputs
    ones = layout.unflatten(torch.ones(layout.size, dtype=torch.float64))
    return isinstance(sample.problem.pull_back(sample.problem.primals, ones), Raised)


def _with_derivative(context: _Context, sample: Sample, head: str) -> tuple[str, dict[str, Any]]:
    problem: CallProblem | VjpProblem = sample.problem
    second = rule(context.finding.code).family is Family.GRADGRADCHECK
    u: tuple[Tensor, ...] = ()
    if second:
        u = sample.problem.outputs.unflatten(random_signs(sample.problem.outputs.size, sample.case.seed + 17))
        problem = VjpProblem(sample.problem, u)
    found = probe(sample, problem, context.finding)
    if found is None:
        refused = _refused(sample)  # torch refuses a gradient that was replaced while its backward was read
        return (head + script.raising(), {"twice": False}) if refused else ("", {})
    values: dict[str, Any] = {"direction": found.direction}
    if found.moved is not None:
        values["moved"] = found.moved
    if second:
        return head + script.second_order(_second(sample, found, values, u)), values
    positions = sample.problem.output_positions
    kept = [(p, t) for p, t in zip(positions, found.cotangents, strict=True) if t is not None]
    values["grad_outputs"] = [t for _, t in kept]
    return head + script.first_order(_compared(context.differentiable, found, [p for p, _ in kept])), values


def _second(sample: Sample, found: Probe, values: dict[str, Any], u: tuple[Tensor, ...]) -> script.Compared:
    positions = sample.problem.output_positions
    weights = [
        (n, w) for n, w in zip(sample.problem.input_names, found.cotangents, strict=True) if w is not None
    ]
    values["grad_outputs"], values["weights"] = list(u), weights[0][1]
    by = found.by
    if by.startswith("grad_output"):
        by = f"grad_output {positions[0] if by == 'grad_output' else by[len('grad_output[') : -1]}"
    compared = _compared(list(sample.problem.input_names), found, list(positions))
    return script.Compared(**{**vars(compared), "by": by, "gradient_of": weights[0][0]})


def _compared(differentiable: list[str], found: Probe, outputs: list[int]) -> script.Compared:
    return script.Compared(
        by=found.by,
        outputs=outputs,
        differentiable=differentiable,
        step=found.step,
        tolerance=float(f"{found.tolerance:.3g}"),
        moved=found.moved is not None,
    )


def _with_reference(context: _Context, sample: Sample, head: str) -> tuple[str, dict[str, Any]]:
    plan, finding = context.request.verified.plan, context.finding
    by_surrogate = plan.surrogate is not None
    path = plan.surrogate.path if plan.surrogate is not None else plan.reference
    names = plan.surrogate.arguments if plan.surrogate is not None else plan.reference_arguments
    if not path or (by_surrogate and finding.code != "GV302"):
        return "", {}
    settings = context.subject.settings
    position = finding.output or 0
    values: dict[str, Any] = {"output": position, "rtol": settings.rtol, "atol": max(settings.atol, 1e-12)}
    if finding.code == "GV302":
        layout = sample.problem.outputs
        u = layout.unflatten(random_signs(layout.size, sample.case.seed + COTANGENT_SEED))
        values["grad_outputs"] = [u[sample.problem.output_positions.index(position)]]
        values["by"] = finding.input
    arguments = _argument_expressions(context)
    given = [arguments[sample.position_of(name)] for name in names] if names else arguments
    text = script.against_reference(_expression(path, context), given, of_gradient=finding.code == "GV302")
    return head + text, values


def _saved_inputs(case: Case, arguments: tuple[Argument, ...]) -> dict[str, Any]:
    objects = {i.name for i in case.inputs if isinstance(i, ObjectInput)}
    return {a.name: _detached(a.value) for a in arguments if a.name not in objects}


def _detached(value: Any) -> Any:  # noqa: ANN401
    return value.detach().clone() if isinstance(value, Tensor) else value


def _called(context: _Context) -> script.Called:
    request = context.request
    name, root = dotted_name(Path(request.module))
    loaded = getattr(context.module, "__name__", "") == name
    return script.Called(
        root=Path(os.path.relpath(root, request.folder)).as_posix(),
        module=name if loaded else Path(request.module).relative_to(root).as_posix(),
        setup=_setup(context),
        arguments=_argument_expressions(context),
        seed=context.case.seed,
        default_dtype=request.verified.plan.default_dtype,
    )


def _setup(context: _Context) -> str:
    target = context.request.verified.target
    value = _expression(target.attribute, context)
    if target.kind is TargetKind.FUNCTION:
        named = guard.call(resolve, target.attribute, context.module)
        is_apply = not isinstance(named, Raised) and not isinstance(named.value, type)
        return f"target = {value}{'' if is_apply else '.apply'}\n"
    if target.kind in {TargetKind.CALLABLE, TargetKind.CUSTOM_OP}:
        return _by_position(value, target)
    given: Mapping[str, Any] = dict(context.case.init or ())
    positional = [repr(given[k]) for k in sorted((k for k in given if k.isdecimal()), key=int)]
    keywords = [f"{k}={v!r}" for k, v in given.items() if not k.isdecimal()]
    return (
        f"torch.manual_seed({context.case.seed % 2**63})\n"
        f"model = {value}({', '.join([*positional, *keywords])}).to("
        f"{context.subject.settings.device!r}, torch.float64)\n\n\n"
        "def target(*arguments):\n"
        '    """The module as a function: its parameters come after its inputs."""\n'
        "    names = [name for name, _ in model.named_parameters()]\n"
        "    state = dict(zip(names, arguments[len(arguments) - len(names) :]))\n"
        "    state |= {name: buffer.detach().clone() for name, buffer in model.named_buffers()}\n"
        "    return torch.func.functional_call(model, state, arguments[: len(arguments) - len(names)])\n\n\n"
    )


def _by_position(value: str, target: Target) -> str:
    """The callable as one of positional values; see `gradverify.verifier.collect.named`."""
    by_name = [p.name for p in target.parameters if p.keyword_only]
    if not by_name or any(p.variadic for p in target.parameters):
        return f"target = {value}\n"
    first = len(target.parameters) - len(by_name)
    return (
        "\n\ndef target(*arguments):\n"
        '    """What is passed by name alone comes last."""\n'
        f"    named = dict(zip({by_name!r}, arguments[{first}:]))\n"
        f"    return {value}(*arguments[:{first}], **named)\n\n\n"
    )


def _argument_expressions(context: _Context) -> list[str]:
    """One expression for each positional argument."""
    objects = {i.name: i for i in context.case.inputs if isinstance(i, ObjectInput)}
    parts = []
    for argument in context.arguments:
        found = objects.get(argument.name)
        if found is not None:
            given = "" if found.init is None else f"({', '.join(map(repr, found.init))})"
            parts.append(_expression(found.path, context) + given)
        elif isinstance(argument.value, Tensor):
            parts.append(_tensor_expression(context, argument))
        else:
            parts.append(f"inputs[{argument.name!r}]")
    joined = arguments_of_call(context.arguments, parts)
    return [f"[{', '.join(part)}]" if isinstance(part, list) else part for part in joined]


def _tensor_expression(context: _Context, argument: Argument) -> str:
    layout = layout_of(context.case, argument.name) if argument.differentiable else ""
    convert = f".to_{layout.removesuffix('_coo')}()" if layout else ""
    return f"inputs[{argument.name!r}].clone(){convert}"


def _expression(path: str, context: _Context) -> str:
    """Python source for a live object, by the path that the spec gives it."""
    where, _, attribute = path.partition(":")
    own = context.module.__name__.rpartition(".")[2]
    if attribute and where == own:
        return f"module.{attribute}"
    if not attribute and hasattr(context.module, path.partition(".")[0]):
        return f"module.{path}"
    return f"pkgutil.resolve_name({path!r})"
