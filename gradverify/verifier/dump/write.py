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
from gradverify.model import Case, CasePoint, Finding, ObjectInput, TargetKind
from gradverify.rules import Family, rule
from gradverify.verifier import guard
from gradverify.verifier.building import Live, build_subject
from gradverify.verifier.checks.random_signs import random_signs
from gradverify.verifier.checks.samples import arguments_at, prepare
from gradverify.verifier.checks.subject import NoSample, Sample, Subject
from gradverify.verifier.collect.importing import dotted_name, resolve
from gradverify.verifier.dump import script
from gradverify.verifier.dump.entry import layout_of, probe
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

    def sample(self) -> Sample | NoSample:
        """Forward run once at the finding's inputs."""
        at = _reported_at(self.finding)
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
    point = _reported_at(finding)
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
    objects = {i.name for i in case.inputs if isinstance(i, ObjectInput)}
    values["inputs"] = {a.name: _detached(a.value) for a in arguments if a.name not in objects}
    values["differentiable"] = [a.name for a in arguments if a.differentiable]
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


def _reported_at(finding: Finding) -> CasePoint | None:
    """The inputs that a finding's own words and numbers are of."""
    case = finding.case
    return case.shrunk or case if case is not None else None


def _shown(context: _Context) -> tuple[str, dict[str, Any]]:
    """The script, empty where none can show the finding, and what it loads beside the inputs."""
    finding = context.finding
    called = _called(context)
    if called is None:
        return "", {}
    head = script.preamble(context.name, _sentences(finding), called)
    if finding.code in RAISED and finding.code != "GV102":
        return head + script.raising(), {"twice": False}
    sample = context.sample()
    if finding.code in RAISED:
        twice = isinstance(sample, Sample) and not _refused(sample)  # a plain backward goes through
        return head + script.raising(), {"twice": twice}
    text, values = "", dict[str, Any]()
    if isinstance(sample, Sample):
        family = rule(finding.code).family
        if finding.raised is None and (family in SHOWN_BY_DERIVATIVES or finding.code in OF_RETURNS):
            text, values = _with_derivative(context, sample)
        elif finding.code in {"GV301", "GV302"}:
            text, values = _with_reference(context, sample)
    return head + text if text else "", values


def _sentences(finding: Finding) -> list[str]:
    at = _reported_at(finding)
    case = f" Case {at.id}, {at.point} values." if at is not None else ""
    return [
        f"{finding.code} {rule(finding.code).name}: {finding.message}.{case}",
        "Shown with torch alone; exit code 1 while it is so. Found by gradverify.",
    ]


def _refused(sample: Sample) -> bool:
    """Whether a plain backward raises."""
    layout = sample.problem.outputs
    ones = layout.unflatten(torch.ones(layout.size, dtype=torch.float64))
    return isinstance(sample.problem.pull_back(sample.problem.primals, ones), Raised)


def _with_derivative(context: _Context, sample: Sample) -> tuple[str, dict[str, Any]]:
    first = sample.problem
    problem: CallProblem | VjpProblem = first
    second = rule(context.finding.code).family is Family.GRADGRADCHECK
    u = first.outputs.unflatten(random_signs(first.outputs.size, sample.case.seed + 17)) if second else ()
    if second:
        problem = VjpProblem(first, u)
    found = probe(sample, problem, context.finding)
    if found is None:  # torch refuses a gradient that was replaced while its backward was read
        return (script.raising(), {"twice": False}) if _refused(sample) else ("", {})
    positions = first.output_positions
    names = (*first.input_names, *(f"grad_output {p}" for p in positions))
    weighted = [k for k, t in enumerate(found.cotangents) if t is not None]
    text = script.derivative(
        names[found.number],
        positions if second else [positions[k] for k in weighted],
        found.step,
        float(f"{found.tolerance:.3g}"),
        of=[names[k] for k in weighted] if second else (),
    )
    weights = [found.cotangents[k] for k in weighted]
    values = {"weights": weights, "direction": found.direction, "moved": found.moved}
    return text, {**values, "grad_outputs": list(u)} if second else values


def _with_reference(context: _Context, sample: Sample) -> tuple[str, dict[str, Any]]:
    plan, finding = context.request.verified.plan, context.finding
    of_gradient = finding.code == "GV302"
    path, names = plan.reference, plan.reference_arguments
    if plan.surrogate is not None:
        path, names = plan.surrogate.path if of_gradient else "", plan.surrogate.arguments
    if not path:
        return "", {}
    settings = context.subject.settings
    position = finding.output or 0
    values: dict[str, Any] = {"output": position, "rtol": settings.rtol, "atol": max(settings.atol, 1e-12)}
    if of_gradient:
        layout = sample.problem.outputs
        u = layout.unflatten(random_signs(layout.size, sample.case.seed + COTANGENT_SEED))
        values["grad_outputs"] = [u[sample.problem.output_positions.index(position)]]
    arguments = _argument_expressions(context)
    given = [arguments[sample.position_of(name)] for name in names] if names else arguments
    by = finding.input if of_gradient else None
    return script.against_reference(_expression(path, context), given, by), values


def _detached(value: Any) -> Any:  # noqa: ANN401
    return value.detach().clone() if isinstance(value, Tensor) else value


def _called(context: _Context) -> script.Called | None:
    """None where another module has the name of the target's own."""
    request = context.request
    name, root = dotted_name(Path(request.module))
    if getattr(context.module, "__name__", "") != name:
        return None
    return script.Called(
        root=Path(os.path.relpath(root, request.folder)).as_posix(),
        module=name,
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
    # What is passed by name alone comes last, see `gradverify.verifier.collect.named`.
    by_name = [p.name for p in target.parameters if p.keyword_only]
    first = len(target.parameters) - len(by_name)
    is_open = not by_name or any(p.variadic for p in target.parameters)
    passed = f"given[:{first}], dict(zip({by_name!r}, given[{first}:]))"
    if target.kind in {TargetKind.CALLABLE, TargetKind.CUSTOM_OP}:
        called = passed.replace("dict", "**dict")
        return f"target = {value}\n" if is_open else f"target = lambda *given: {value}(*{called})\n"
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
        "    given = arguments[: len(arguments) - len(names)]\n"
        f"    return torch.func.functional_call(model, state, {'given' if is_open else passed})\n\n\n"
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
