"""The contract of backward: what it returned before the engine saw it, and undefined grad_outputs.

GV103 to GV105, GV407 and GV810.

GV107, a note: parameters that an argument carries into forward, where autograd does not see them.

A Function that is handed a module, as checkpoints and fixed points are, differentiates what its parameters
stand for at most by writing to their `.grad`. They are no inputs, so no check here reaches their gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from gradverify.model import Finding, Point, Severity
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.calling import Gradients
from gradverify.verifier.numerics.probes import random_signs
from gradverify.verifier.numerics.problem import CallProblem, Graph
from gradverify.verifier.questions.first_order import RETURN_NONE
from gradverify.verifier.questions.reading import Irregularity, Remark
from gradverify.verifier.questions.result import CheckResult, FirstOrder, outcome_of
from gradverify.verifier.questions.samples import with_defaults
from gradverify.verifier.questions.subject import Sample, first_line
from gradverify.verifier.questions.wording import apart, listed_names, output_name
from gradverify.verifier.witnesses.values import EPSILON

NAMED = 3
"""Parameters that are named; of more, so many and their number."""


def carried_parameters(sample: Sample) -> list[Finding]:
    """One note for each argument that carries tensors which require grad, without being one."""
    found = []
    for argument in sample.arguments:
        inputs = {id(tensor) for _, tensor in argument.holds}
        names = [name for name, tensor in _requiring_grad(argument.value) if id(tensor) not in inputs]
        if names:
            found.append(_reported(sample, argument.name, names))
    return found


def _reported(sample: Sample, name: str, carried: list[str]) -> Finding:
    shown = listed_names(carried) if len(carried) <= NAMED else f"`{carried[0]}` and {len(carried) - 1} more"
    one = len(carried) == 1
    which = "requires grad and is no input" if one else "require grad and are no inputs"
    whose = "its" if one else "their"
    return sample.finding(
        "GV107",
        f"`{name}` carries {shown}, which {which} of forward: {whose} gradient was not verified",
        hint="Autograd gives a gradient to arguments of `apply` alone: hand parameters over one by one.",
        input=name,
        severity=Severity.NOTE,
    )


def _requiring_grad(value: object) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors inside of an object, or of what a bound method belongs to.

    The base class lists parameters: a method that an author overrides is not called here.
    """
    owner = value.__self__ if isinstance(value, MethodType) else value
    if isinstance(owner, nn.Module):
        yield from ((name, p) for name, p in nn.Module.named_parameters(owner) if p.requires_grad)
    elif not isinstance(owner, Tensor):
        held = getattr(owner, "__dict__", {})
        yield from (
            (name, one) for name, one in held.items() if isinstance(one, Tensor) and one.requires_grad
        )


UNCHANGED = 1e-9
"""Relative deviation from the same gradient with zeros that is no longer a different order of summation."""


def contract(sample: Sample, first: FirstOrder) -> CheckResult:
    """Findings on what backward returned while the first order was measured, and on undefined grads."""
    reader = sample.subject.reader
    remarks = () if reader is None else reader.remarks.values()
    findings = [_explain(sample, remark, first) for remark in remarks]
    if sample.draw == 0:
        findings += carried_parameters(sample)
    if sample.draw == 0 and not any(f.code == "GV105" for f in findings):
        once = first.verified and sample.point is Point.TYPICAL and sample.subject.is_first_of_options
        undefined = _undefined_grads(sample) if once else None
        found = (undefined, _without_gradients_of_defaults(sample))
        findings += [one for one in found if one is not None]
    return CheckResult(tuple(findings), outcome_of(findings))


def stops_judgement(result: CheckResult) -> bool:
    """Whether the wrong contract leaves nothing for numbers to compare: a count that cannot be assigned."""
    return any(f.code == "GV105" and f.severity is Severity.ERROR for f in result.findings)


def _explain(sample: Sample, remark: Remark, first: FirstOrder) -> Finding:
    got, expected = remark.got, remark.expected
    if remark.kind is Irregularity.COUNT:
        return sample.finding(
            "GV105",
            f"backward returned {got} gradients, forward takes {expected} arguments",
            hint="Return one value for each argument of forward after ctx, in the same order; "
            "None for those that need no gradient.",
        )
    name = sample.arguments[remark.position].name
    wrong = any(f.input == name and f.severity is Severity.ERROR for f in first.result.findings)
    code, severity = "GV103", Severity.ERROR
    match remark.kind:
        case Irregularity.NOT_FOR_TENSOR:
            code, said = "GV105", f"backward returned {got} for `{name}`, which is not a tensor"
            hint = "Return None in its place, and check the order: that of forward's arguments."
        case Irregularity.DTYPE:
            refused = "complex" in got and "complex" not in expected
            said = f"backward returned a gradient of {got} for `{name}`, which is {expected}: the engine "
            said += "refuses it" if refused else f"casts it{_lost(got, expected)}"
            hint = "Allocate gradients with the dtype of the input (torch.empty_like)."
            hint = "Return its real part (`.real`), or declare a complex input." if refused else hint
            narrowed = first.single_precision or _is_narrowed_by_forward(sample, name)
            code, severity = "GV104", Severity.NOTE if narrowed else Severity.ERROR
        case Irregularity.SHAPE_REFUSED:
            twin = _of_shape(sample, got, but=name)
            said = _shapes(remark, name) + (f", the shape of `{twin}`" if twin else "")
            hint = f"Is it the gradient of `{twin}`, stored in the wrong variable?"
            hint = hint if twin else f"Return a gradient of the shape of `{name}`."
        case Irregularity.SHAPE_SUMMED:
            said = f"{_shapes(remark, name)}; the engine sums it{'' if wrong else ', rightly'}"
            hint = "Sum over the extra dimensions: it takes less memory, and only autograd sums for you."
            hint = f"Return a gradient of the shape of `{name}`: this one's sum is not it." if wrong else hint
            severity = Severity.ERROR if wrong else Severity.WARNING
    return sample.finding(code, said, hint=hint, input=name, severity=severity)


def _lost(got: str, expected: str) -> str:
    """What a gradient of one dtype lacks where another one is expected; empty where it holds all of it."""
    dtypes = (getattr(torch, got), getattr(torch, expected))
    return "" if torch.promote_types(*dtypes) is dtypes[0] else f", and what {got} does not hold is lost"


def _shapes(remark: Remark, name: str) -> str:
    got, expected = remark.got, remark.expected
    return f"backward returned a gradient of shape {got} for `{name}`, whose shape is {expected}"


def _of_shape(sample: Sample, shape: str, *, but: str) -> str:
    """The name of another tensor argument of a shape; empty for none."""
    tensors = (a for a in sample.arguments if isinstance(a.value, Tensor) and a.name != but)
    return next((a.name for a in tensors if str(list(a.value.shape)) == shape), "")


def _is_narrowed_by_forward(sample: Sample, name: str) -> bool:
    """Whether every output has a dtype of fewer digits than the input: then so has every grad_output."""
    given = sample.problem.primals[sample.problem.input_names.index(name)].dtype
    outputs = [b.dtype for b in sample.problem.outputs.blocks]
    return bool(outputs) and all(torch.finfo(d).eps > torch.finfo(given).eps for d in outputs)


def _without_gradients_of_defaults(sample: Sample) -> Finding | None:
    """GV105, as a warning: torch refuses what backward returns once what has a default is given, too."""
    subject, reader, given = sample.subject, sample.subject.reader, sample.arguments
    every = with_defaults(given, replace(subject, binds_defaults=True))
    omitted = every[len(given) :]
    none = not omitted or any(a.value is ... for a in omitted)
    if reader is None or subject.function_class is None or none:
        return None
    problem = replace(sample.problem, arguments=every)
    u = problem.outputs.unflatten(random_signs(problem.outputs.size, sample.case.seed))
    with reader.without_new_remarks():
        problem.pull_back(problem.primals, u)
        counts = [r for (kind, _), r in reader.remarks.items() if kind is Irregularity.COUNT]
    if not counts:
        return None
    names, got = listed_names([a.name for a in omitted]), int(counts[0].got)
    gradients = "1 gradient" if got == 1 else f"{got} gradients"
    said = f"given {names} as well, backward returns {gradients} for {counts[0].expected} arguments: torch "
    hint = "Return None for each argument that needs no gradient, those with a default among them."
    return sample.finding("GV105", f"{said}refuses that", hint=hint, severity=Severity.WARNING)


def _undefined_grads(sample: Sample) -> Finding | None:
    """GV407: an undefined grad_output must count as zeros, one output at a time and all together."""
    if not sample.subject.has_python_backward or not sample.inputs.size:
        return None
    count = len(sample.problem.outputs.blocks)
    u = sample.problem.outputs.unflatten(random_signs(sample.problem.outputs.size, sample.case.seed))
    sets = [*([{k} for k in range(count)] if count > 1 else []), set(range(count))]
    found = (_with_undefined(sample, sample.problem, u, undefined) for undefined in sets)
    return next((f for f in found if f is not None), None)


def _with_undefined(
    sample: Sample, problem: CallProblem, u: tuple[Tensor, ...], undefined: set[int]
) -> Finding | None:
    zeros = tuple(torch.zeros_like(t) if k in undefined else t for k, t in enumerate(u))
    is_zero = len(undefined) == len(u)  # a verified gradient is linear in grad_output
    nothing: Returned[Gradients] = Returned((None,) * len(problem.primals))
    expected = nothing if is_zero else problem.pull_back(problem.primals, zeros)
    graph = problem.graph(problem.primals)
    if isinstance(expected, Raised) or isinstance(graph, Raised):
        return None
    hidden = tuple(_undefined(o) if k in undefined else o for k, o in enumerate(graph.value.outputs))
    result = problem.back(Graph(graph.value.leaves, hidden), u)
    position = problem.output_positions[min(undefined)]
    which = "every output" if len(undefined) > 1 else "the output"
    if len(u) > 1 and len(undefined) == 1:
        which = output_name(position, sample.outputs_returned)
    when = f"when grad_output of {which} is undefined (None)"
    if isinstance(result, Raised):
        error = result.error
        said = f"backward raises {error.type} {when}: {first_line(error.message)}"
        made = sample.finding("GV407", said, hint=RETURN_NONE, raised=error, output=position)
        return replace(made, severity=Severity.NOTE) if error.deliberate else made
    got, wanted = sample.inputs.flatten(result.value), sample.inputs.flatten(expected.value)
    off = (got - wanted).abs() > UNCHANGED * wanted.abs().max() + 64 * EPSILON
    if not off.any():
        return None
    worst = int((got - wanted).abs().argmax())
    name = problem.input_names[sample.inputs.block_of(worst)]
    gives, due = apart(got[worst].item(), wanted[worst].item())
    return sample.finding(
        "GV407",
        f"the gradient of `{name}` is wrong {when}: {gives}, with zeros in its place {due}",
        hint="Treat None as zeros, or leave ctx.set_materialize_grads at its default.",
        input=name,
        output=position,
    )


def old_style(sample: Sample) -> Finding:
    """GV810: the class lacks `@staticmethod`; it runs through `.apply`, and torch may stop allowing it."""
    return sample.finding(
        "GV810",
        "forward or backward is not a @staticmethod (the old style)",
        hint="Put @staticmethod above forward and backward and call the first parameter ctx.",
        case=None,
        shown_inputs=(),
    )


def _undefined(x: Tensor) -> Tensor:
    result: Tensor = _Undefined.apply(x)  # type: ignore[no-untyped-call]
    return result


class _Undefined(Function):
    """Identity whose backward hands an undefined gradient on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ANN401, ARG004
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # noqa: ANN401, ARG004
        return None
