"""Second order: the derivative of backward is right, refused clearly, or silently cut (GV201 to GV203).

Backward is a map of the inputs and of grad_output. The judge is asked of its derivative as of forward's.
"""

from __future__ import annotations

import inspect
import linecache
from dataclasses import replace
from pathlib import Path

import torch
from torch.autograd import Function

from gradverify.model import Finding, LinePatch, Outcome, RaisedError, Severity, SourceChange, shown_path
from gradverify.source import definition, is_bound_above
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised
from gradverify.verifier.guard.engine import run_every_node
from gradverify.verifier.interpreter.launches import launches
from gradverify.verifier.numerics.problem import Graph, VjpProblem
from gradverify.verifier.questions.findings import FIRST_ORDER_ONLY, ONCE, not_known, wrong_second
from gradverify.verifier.questions.first_order import backward_raised
from gradverify.verifier.questions.reading import own_backward
from gradverify.verifier.questions.result import CheckResult
from gradverify.verifier.questions.subject import Sample, first_line
from gradverify.verifier.questions.witnessing import cotangents_of, second_order, second_problem
from gradverify.verifier.targets.discover import applied_functions, compiled_calls
from gradverify.verifier.witnesses.answers import Asked, NotJudged, Right, Unknown, Wrong
from gradverify.verifier.witnesses.claim import Claim
from gradverify.verifier.witnesses.judge import judge

ACCIDENTS = frozenset(
    {"NameError", "AttributeError", "IndexError", "KeyError", "UnboundLocalError", "AssertionError"}
)
"""Exceptions that are never raised to refuse a double backward."""


def ask_second(sample: Sample, first: Asked, *, prove: bool) -> CheckResult:
    """Judge the derivative of backward at one grad_output, in the inputs and in grad_output.

    At values that nobody declared both witnesses must speak against it.
    """
    second = second_problem(sample)
    made = second.graph(second.primals)
    if isinstance(made, Raised):
        return _raised(sample, made.error)
    refused = refusal(made.value, second) if prove else None
    asked = second_order(sample, first, made.value, second)
    found = judge(asked, prove=prove) if refused is None else Raised(refused)
    if isinstance(found, Raised):
        return _raised(sample, found.error)
    wrong = {
        pair: a
        for pair, a in found.answers.items()
        if isinstance(a, Wrong) and not a.rounded and (asked.declared or (a.both and not a.nonfinite))
    }
    if wrong:
        cut, worst = is_cut(asked), sorted(wrong, key=lambda pair: -wrong[pair].largest)
        told = (wrong_second(sample, second, one, wrong[one], cut=cut) for one in worst[: 1 if cut else None])
        every = (_with_change(sample, finding, made.value) for finding in told)
        return CheckResult.of(*every, capability="wrong")
    for (of, by), answer in found.answers.items():
        if isinstance(answer, Unknown) and answer.mismatch:
            unknown = not_known(sample, of, second.input_names[by], answer, second=True)
            return CheckResult((unknown,), Outcome.INCONCLUSIVE)
    known = any(isinstance(a, Right | NotJudged) for a in found.answers.values())
    return CheckResult(capability="yes" if known else "")


def is_cut(asked: Asked) -> bool:
    """Whether autograd has the gradient depend on nothing at all."""
    return bool(asked.claim.missing) and all(asked.claim.missing.values())


def _raised(sample: Sample, error: RaisedError) -> CheckResult:
    if error.type in ACCIDENTS and not error.deliberate:
        raised = backward_raised(sample, error, " when it is differentiated itself")
        return CheckResult((raised,), Outcome.FAILED, capability="no")
    is_marked = "once_differentiable" in error.message
    what = "an explicit error" if error.deliberate or is_marked else error.type
    said = f"the double backward raises {what}: {first_line(error.message)}"
    return CheckResult.of(sample.finding("GV203", said, raised=None if is_marked else error), capability="no")


def refusal(graph: Graph, second: VjpProblem) -> RaisedError | None:
    """What differentiating the gradients raises, None if it does not.

    `once_differentiable` raises only when the whole graph runs: `torch.autograd.grad` skips nodes that lead
    to no wanted input and returns None in silence.
    """
    connected = [g for g in graph.outputs if g.requires_grad]
    if not connected:
        return None
    with second.around():
        result = guard.call(run_every_node, connected, [torch.ones_like(g) for g in connected])
    for leaf in graph.leaves:
        leaf.grad = None
    return result.error if isinstance(result, Raised) else None


def graph_alone(sample: Sample) -> CheckResult:
    """Whether backward refuses to be differentiated, or a kernel cuts its graph: no number is measured."""
    second, before = second_problem(sample), launches()
    graph = second.graph(second.primals)
    if isinstance(graph, Raised):
        return _raised(sample, graph.error)
    refused = refusal(graph.value, second)
    if refused is not None:
        return _raised(sample, refused)
    function, operator = sample.subject.function_class, sample.subject.operator
    backward = own_backward(function) if function is not None else getattr(operator, "backward", None)
    is_kernel = launches() > before or (backward is not None and bool(compiled_calls([backward])))
    is_cut_off = is_kernel and not any(g.requires_grad for g in graph.value.outputs)
    cut = _cut_by_kernel(sample) if is_cut_off else None
    return CheckResult((cut,) if cut else (), Outcome.NOT_RUN, capability="wrong" if cut else "")


def _cut_by_kernel(sample: Sample) -> Finding | None:
    """No gradient has a graph, as a kernel leaves it; None where the gradients are zero, so nothing is lost.

    Backward is linear in grad_output, so its derivative by that is known without a measurement. A warning: of
    kernels hardly any second derivative is meant, and whoever asks for one must learn that it is lost.
    """
    outputs = sample.problem.outputs
    row = Claim(sample.problem).row(outputs.flatten(cotangents_of(sample)))
    if isinstance(row, Raised) or not row.nan_to_num(0.0).any():
        return None
    name = sample.problem.input_names[sample.inputs.block_of(int(row.nan_to_num(0.0).abs().argmax()))]
    return sample.finding(
        "GV202",
        f"the second derivative is silently cut by a kernel: for autograd the gradient of `{name}` depends "
        "on nothing, and it is not zero",
        hint=FIRST_ORDER_ONLY,
        input=name,
        severity=Severity.WARNING,
        cause="detached",
    )


def _with_change(sample: Sample, finding: Finding, graph: Graph) -> Finding:
    """The finding with the change that refuses a second derivative, where it is cut off.

    Torch's own formulas are right, so that without another Function in backward only a constant makes the
    derivative wrong.
    """
    function = sample.subject.function_class
    if function is None:
        return finding
    others = {name for _, name in applied_functions(graph.outputs)} - {function.__qualname__}
    cause = finding.cause if others else "detached"
    is_refused = cause and finding.severity is Severity.ERROR
    return replace(finding, cause=cause, changes=_marked_first_order(function) if is_refused else ())


def _marked_first_order(function: type[Function]) -> tuple[SourceChange, ...]:
    """`@once_differentiable` above backward; none where its source or the name `torch` is missing."""
    backward = inspect.unwrap(own_backward(function))
    tree, code = definition(backward), getattr(backward, "__code__", None)
    if tree is None or code is None:
        return ()
    file, lines = Path(code.co_filename), linecache.getlines(code.co_filename)
    # Lines count from 1 at the first decorator, as the code's first line does.
    place = code.co_firstlineno + tree.lineno - 2
    if not place < len(lines) or not is_bound_above("".join(lines), "torch", place + 1):
        return ()
    here = lines[place].rstrip("\r\n")
    if not here.lstrip().startswith("def "):
        return ()
    above = here[: len(here) - len(here.lstrip())] + ONCE
    patch = LinePatch.within(shown_path(file), lines, place, place + 1, (above, here))
    return (SourceChange(file.name, place + 1, "", ONCE, patch, refuses=True),)
