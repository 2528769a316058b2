"""The contract of backward: what it returned before the engine saw it, and undefined grad_outputs.

GV103 to GV105, GV407 and GV810.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gradverify.model import Finding, Outcome, RaisedError, Severity
from gradverify.verifier.checks.carried import carried_parameters
from gradverify.verifier.checks.first_order import RETURN_NONE
from gradverify.verifier.checks.random_signs import random_signs
from gradverify.verifier.checks.reading import Irregularity, Remark
from gradverify.verifier.checks.result import CheckResult, FirstOrder, outcome_of
from gradverify.verifier.checks.subject import Sample, first_line
from gradverify.verifier.checks.wording import number, output_name
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.difference import EPSILON
from gradverify.verifier.numerics.problem import CallProblem, Graph

UNCHANGED = 1e-9
"""Relative deviation from the same gradient with zeros that is no longer a different order of summation."""


def contract(sample: Sample, first: FirstOrder) -> CheckResult:
    """Findings on what backward returned while the first order was measured, and on undefined grads."""
    reader = sample.subject.reader
    findings: list[Finding] = []
    if reader is not None:
        for remark in reader.remarks.values():
            made = _explain(sample, remark, first)
            if made is not None:
                findings.append(made)
    if sample.draw == 0:
        findings.extend(carried_parameters(sample))
    if sample.draw == 0 and not any(f.code == "GV105" for f in findings) and first.verified:
        findings.extend(_undefined_grads(sample))
    return CheckResult(tuple(findings), outcome_of(findings))


def stops_judgement(result: CheckResult) -> bool:
    """Whether the wrong contract leaves nothing for numbers to compare: a count that cannot be assigned."""
    return any(f.code == "GV105" and f.severity is Severity.ERROR for f in result.findings)


def _explain(sample: Sample, remark: Remark, first: FirstOrder) -> Finding | None:
    if remark.kind is Irregularity.COUNT:
        return sample.finding(
            "GV105",
            f"backward returned {remark.got} gradients, forward takes {remark.expected} arguments",
            hint="Return one value for each argument of forward after ctx, in the same order; "
            "None for those that need no gradient.",
        )
    name = sample.arguments[remark.position].name
    if remark.kind is Irregularity.NOT_FOR_TENSOR:
        return sample.finding(
            "GV105",
            f"backward returned {remark.got} for `{name}`, which is not a tensor",
            hint="Return None in its place, and check that the gradients stand in the order of forward's "
            "arguments.",
            input=name,
        )
    if remark.kind is Irregularity.DTYPE:
        refused = "complex" in remark.got and "complex" not in remark.expected
        return sample.finding(
            "GV104",
            f"backward returned a {remark.got} gradient for `{name}`, which is {remark.expected}: "
            + ("the engine refuses it" if refused else "the engine casts it, its digits are lost"),
            hint="Return its real part (`.real`), or declare a complex input."
            if refused
            else "Allocate gradients with the dtype of the input (torch.empty_like, or "
            "dtype=grad_output.dtype).",
            input=name,
            severity=Severity.NOTE
            if first.single_precision or _is_narrowed_by_forward(sample, name)
            else Severity.ERROR,
        )
    return _explain_shape(sample, remark, name, first)


def _is_narrowed_by_forward(sample: Sample, name: str) -> bool:
    """Whether every output has a dtype of fewer digits than the input: then so has every grad_output."""
    given = sample.problem.primals[sample.problem.input_names.index(name)].dtype
    outputs = [b.dtype for b in sample.problem.outputs.blocks]
    return bool(outputs) and all(torch.finfo(d).eps > torch.finfo(given).eps for d in outputs)


def _explain_shape(sample: Sample, remark: Remark, name: str, first: FirstOrder) -> Finding | None:
    if remark.kind is Irregularity.SHAPE_REFUSED:
        twins = [
            a.name
            for a in sample.arguments
            if a.name != name and isinstance(a.value, Tensor) and str(list(a.value.shape)) == remark.got
        ]
        whose = f", the shape of `{twins[0]}`" if twins else ""
        return sample.finding(
            "GV103",
            f"backward returned a gradient of shape {remark.got} for `{name}`, whose shape is "
            f"{remark.expected}{whose}",
            hint=f"Is it the gradient of `{twins[0]}`, stored in the wrong variable?"
            if twins
            else f"Return a gradient of the shape of `{name}`.",
            input=name,
        )
    made = sample.finding(
        "GV103",
        f"backward returned a gradient of shape {remark.got} for `{name}`, whose shape is {remark.expected}; "
        "the engine sums it",
        hint="Sum over the extra dimensions yourself: it costs less memory, and other callers of backward "
        "do not sum for you.",
        input=name,
    )
    wrong = any(f.input == name and f.severity is Severity.ERROR for f in first.result.findings)
    return made if wrong else replace(made, severity=Severity.WARNING, message=made.message + ", rightly")


def _undefined_grads(sample: Sample) -> list[Finding]:
    """GV407: an undefined grad_output must count as zeros, one output at a time and all together."""
    if not sample.subject.has_python_backward or not sample.inputs.size:
        return []
    problem = sample.problem
    count = len(problem.outputs.blocks)
    u = problem.outputs.unflatten(random_signs(problem.outputs.size, sample.case.seed))
    findings = []
    everything = set(range(count))
    for undefined in [*([{k} for k in range(count)] if count > 1 else []), everything]:
        finding = _with_undefined(sample, problem, u, undefined)
        if finding is not None:
            findings.append(finding)
            break
    return findings


def _with_undefined(
    sample: Sample, problem: CallProblem, u: tuple[Tensor, ...], undefined: set[int]
) -> Finding | None:
    zeros = tuple(torch.zeros_like(t) if k in undefined else t for k, t in enumerate(u))
    expected = problem.pull_back(problem.primals, zeros)
    graph = problem.graph(problem.primals)
    if isinstance(expected, Raised) or isinstance(graph, Raised):
        return None
    hidden = tuple(_undefined(o) if k in undefined else o for k, o in enumerate(graph.value.outputs))
    result = problem.back(Graph(graph.value.leaves, hidden), u)
    position = problem.output_positions[min(undefined)]
    several = len(undefined) > 1
    which = "every output" if several else "the output"
    if len(u) > 1 and not several:
        which = output_name(position, sample.outputs_returned)
    if isinstance(result, Raised):
        return _undefined_raised(sample, which, position, result.error)
    got, wanted = sample.inputs.flatten(result.value), sample.inputs.flatten(expected.value)
    off = (got - wanted).abs() > UNCHANGED * wanted.abs().max() + 64 * EPSILON
    if not off.any():
        return None
    worst = int((got - wanted).abs().argmax())
    name = problem.input_names[sample.inputs.block_of(worst)]
    return sample.finding(
        "GV407",
        f"the gradient of `{name}` is wrong when grad_output of {which} is undefined (None): "
        f"{number(got[worst].item())}, with zeros in its place {number(wanted[worst].item())}",
        hint="Treat None as zeros, or leave ctx.set_materialize_grads at its default.",
        input=name,
        output=position,
    )


def _undefined_raised(sample: Sample, which: str, position: int, error: RaisedError) -> Finding:
    deliberate = error.deliberate
    return sample.finding(
        "GV407",
        f"backward raises {error.type} when grad_output of {which} is undefined (None): "
        f"{first_line(error.message)}",
        hint=RETURN_NONE,
        raised=error,
        output=position,
        **({"severity": Severity.NOTE} if deliberate else {}),
    )


def old_style(sample: Sample) -> CheckResult:
    """GV810: the class lacks `@staticmethod`; it runs through `.apply`, and torch may stop allowing it."""
    finding = sample.finding(
        "GV810",
        "forward or backward is not a @staticmethod (the old style)",
        hint="Put @staticmethod above forward and backward and call the first parameter ctx.",
        case=None,
        shown_inputs=(),
    )
    return CheckResult((finding,), Outcome.PASSED)


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
