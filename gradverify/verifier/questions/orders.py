"""Both orders of a sample: what the judge answers, as findings, and what there is where it measures nothing.

That is where backward raises (GV102), where nothing connects (GV003), and size 0 (GV412): forward and
backward must run and give the right shapes there all the same.

The second order is right, refused clearly, or silently cut (GV201 to GV203). Backward is a map of the inputs
and of grad_output: the judge is asked of its derivative as of forward's.
"""

from __future__ import annotations

import inspect
import linecache
import re
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd import Function

from gradverify.model import (
    Finding,
    LinePatch,
    Outcome,
    Point,
    RaisedError,
    Severity,
    SourceChange,
    indexed,
    shown_path,
)
from gradverify.source import definition, is_bound_above
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised, lacking
from gradverify.verifier.guard.engine import run_every_node
from gradverify.verifier.guard.memory import filled_memory
from gradverify.verifier.guard.raised_errors import fails_to_import
from gradverify.verifier.interpreter.launches import launches
from gradverify.verifier.numerics.problem import Graph, VjpProblem
from gradverify.verifier.questions.findings import (
    FIRST_ORDER_ONLY,
    ONCE,
    WHY,
    CheckResult,
    FirstOrder,
    Uncovered,
    gradient_of,
    imprecise_gradient,
    is_open,
    not_known,
    number,
    output_name,
    wrong_gradient,
    wrong_second,
)
from gradverify.verifier.questions.reading import own_backward
from gradverify.verifier.questions.subject import Sample, first_line, tensors_in
from gradverify.verifier.questions.witnessing import (
    Witnesses,
    cotangents_of,
    first_order,
    second_order,
    second_problem,
    witnesses_of,
)
from gradverify.verifier.targets.discover import applied_functions, compiled_calls
from gradverify.verifier.witnesses.answers import (
    Answer,
    Asked,
    Imprecise,
    NotJudged,
    Reason,
    Right,
    Unknown,
    Wrong,
)
from gradverify.verifier.witnesses.claim import Claim, spread_of_rows
from gradverify.verifier.witnesses.judge import judge
from gradverify.verifier.witnesses.proof import OF_FLOAT32
from gradverify.verifier.witnesses.rounding import FACTOR, has_digits_of_float32
from gradverify.verifier.witnesses.values import alone, probe


def refused_empty(sample: Sample) -> FirstOrder | None:
    """Run one backward where the Jacobian has no entries; None where it is right, or there is no need.

    The shapes of what backward returns are read while it runs, and judged with the contract. Inputs on which
    nothing depends get a gradient of zeros; but where no input is empty, the result is made so, and may be
    there for its backward alone.
    """
    problem, inputs = sample.problem, sample.inputs
    if inputs.size and problem.outputs.size:
        return None
    cotangent = problem.outputs.unflatten(torch.ones(problem.outputs.size, dtype=torch.float64))
    with filled_memory(fill=True):
        result = problem.pull_back(problem.primals, cotangent)
    if isinstance(result, Raised):
        result = problem.pull_back(problem.primals, cotangent)
    if isinstance(result, Raised):
        error = result.error
        said = f"backward raised {error.type} for an empty input: {first_line(error.message)}"
        found = sample.finding("GV412", said, hint=EMPTY, raised=error)
        return FirstOrder(CheckResult.of(found))
    gradient = inputs.flatten(result.value)
    is_given_nothing = any(isinstance(a.value, Tensor) and not a.value.numel() for a in sample.arguments)
    wrong = gradient != 0
    if not wrong.any() or not is_given_nothing:
        return None
    worst = int(wrong.int().argmax())
    number_of = inputs.block_of(worst)
    name = problem.input_names[number_of]
    place, value = indexed(name, inputs.blocks[number_of].index(worst)), number(gradient[worst].item())
    said = f"what forward returns is empty, and the gradient of {place} is {value}, not 0"
    found = sample.finding("GV412", said, hint=OF_NOTHING, input=name)
    return FirstOrder(CheckResult.of(found))


EMPTY = (
    "An empty batch is an ordinary input: return gradients of the inputs' shapes. If size 0 is not valid, "
    "leave it out of the spec."
)

OF_NOTHING = (
    "Nothing depends on it there: allocate gradients with zeros (torch.empty reads memory that was never "
    "written), and look for what is left out or divided by where the batch is empty."
)

_UNPACKS = re.compile(r"[^=#]+=\s*[\w.()\[\]]+\.saved_(tensors|variables)\s*(#.*)?")
"""`a, b = ctx.saved_tensors`, as a line: what it unpacks is what forward saved."""


def backward_raised(sample: Sample, error: RaisedError, when: str = "") -> Finding:
    """GV102, with the commonest accident put into words: nothing was saved for backward.

    GV109 where it tells of this machine alone, GV001 where a package is missing.
    """
    said = f"backward raised {error.type}{when}: {first_line(error.message)}"
    missing = lacking(error, sample.subject.settings.device)
    if missing:
        code = "GV001" if fails_to_import(error) else "GV109"
        return sample.finding(code, said, hint=missing, raised=error)
    hint, unpacks = "", error.frames and _UNPACKS.fullmatch(error.frames[-1].source)
    if unpacks and "unpack" in error.message:
        hint = "Hand as many tensors to ctx.save_for_backward as backward unpacks, in the same order."
        if "got 0" in error.message:
            said = f"backward raised{when}: no saved tensors ({error.type}: {first_line(error.message)})"
    return sample.finding("GV102", said, hint=hint, raised=error, part=when)


def disconnected(sample: Sample) -> FirstOrder:
    """GV003."""
    names = " and ".join(output_name(sample, p) for p in sample.disconnected)
    said = f"{names} has no gradient: nothing connects it to the inputs"
    hint = "Something detaches it (no_grad, .data, .detach(), a call that autograd does not know)."
    return FirstOrder(CheckResult.of(sample.finding("GV003", said, hint=hint, output=sample.disconnected[0])))


PROPORTIONAL = 1e-9
"""Relative deviation from a multiple, or a sum, that is no rounding of a linear backward in float64."""


def ask_first(sample: Sample, graph: Graph, *, declared: bool, prove: bool) -> FirstOrder:
    """Judge the gradient of a sample; an exception is a note at what nobody `declared`."""
    witnesses = witnesses_of(sample)
    asked = first_order(sample, graph, declared=declared)
    found = judge(asked, prove=prove)
    witnesses.refuted |= asked.trust.refuted
    if isinstance(found, Raised):
        raised = backward_raised(sample, found.error)
        outcome = Outcome.INCONCLUSIVE if raised.code in {"GV001", "GV109"} else Outcome.FAILED
        if not declared:
            raised, outcome = replace(raised, severity=Severity.NOTE), Outcome.NOT_RUN
        return FirstOrder(CheckResult((raised,), outcome), judged=False, raised=raised.raised, asked=asked)
    answers = found.answers
    made = {pair: f for pair, a in answers.items() if (f := _finding(sample, asked, pair, a)) is not None}
    new = {pair for pair, a in answers.items() if isinstance(a, Wrong) and not a.again}
    if new and any(f.code == "GV101" for f in made.values()) and (bends := how_it_bends(asked)):
        made = {pair: nonlinear(f, bends) if f.code == "GV101" else f for pair, f in made.items()}
    witnesses.ordinary |= new if sample.point is Point.TYPICAL else set()
    # What is wrong at another sample, too, is called the same there.
    witnesses.wrong |= {pair: made[pair].code for pair in new if declared}
    witnesses.of(sample).wrong |= new if declared else set()
    result = CheckResult.of(
        *made.values(),
        uncovered=_uncovered(sample, answers),
        smallest_visible_error=max(
            (
                a.visible
                for a in answers.values()
                if isinstance(a, Right | NotJudged) and a.visible is not None
            ),
            default=None,
        ),
        not_judged=sum(a.count for a in answers.values() if isinstance(a, NotJudged)),
        witnesses=found.witnesses,
    )
    if (result.uncovered or is_open(result.findings)) and result.outcome is Outcome.PASSED:
        result = replace(result, outcome=Outcome.INCONCLUSIVE)
    return FirstOrder(
        result,
        # Sixteen bits are carried out in float64 first.
        single_precision=witnesses.of(sample).is_short and not asked.sixteen,
        proven=all(isinstance(a, Right | Imprecise | NotJudged) for a in answers.values()),
        judged=any(isinstance(a, Right | Wrong | Imprecise) for a in answers.values()),
        asked=asked,
        judgement=found,
    )


def _uncovered(sample: Sample, answers: dict[tuple[int, int], Answer]) -> dict[tuple[int, str], Uncovered]:
    """What nobody could measure of each pair, and why; a mismatch that stays undecided is a finding."""
    problem = sample.problem
    return {
        (problem.output_positions[o], problem.input_names[i]): Uncovered(*WHY[a.reason])
        for (o, i), a in answers.items()
        if (isinstance(a, Unknown) and not a.mismatch) or (isinstance(a, NotJudged) and a.whole)
    }


def _finding(sample: Sample, asked: Asked, pair: tuple[int, int], answer: Answer) -> Finding | None:
    """What is said of an answer, None of a right one, and of what nobody could measure."""
    position, name = sample.problem.output_positions[pair[0]], sample.problem.input_names[pair[1]]
    witnesses = witnesses_of(sample)
    if isinstance(answer, Wrong) and answer.again:  # the sample where it was measured says more
        said = f"{gradient_of(sample, position, name)} is wrong here, too"
        code = witnesses.wrong.get(pair, "GV101")
        return sample.finding(code, said, output=position, input=name, severity=Severity.ERROR)
    if isinstance(answer, Wrong):
        made = wrong_gradient(sample, position, pair[1], answer)
        declared = asked.declared or _at_declared_zeros(sample, name, answer)
        return made if declared else _if_certain(made, pair, answer, witnesses)
    if isinstance(answer, Imprecise):
        return imprecise_gradient(sample, position, pair[1], answer)
    if isinstance(answer, Unknown) and answer.mismatch:
        found = not_known(sample, position, name, answer)
        short = answer.reason is Reason.FLOAT32
        return replace(found, hint=f"{witnesses.of(sample).made} {found.hint}") if short else found
    return None


def _at_declared_zeros(sample: Sample, name: str, answer: Wrong) -> bool:
    """Whether an input has no value but 0 there, and its spec says that zeros are valid."""
    x = sample.inputs.flatten(sample.problem.primals)
    declares = any(t.name == name and 0.0 in t.special for t in tensors_in(sample.case))
    return declares and answer.nonfinite and not any(float(x[e.column]) for e in answer.entries)


def _if_certain(made: Finding, pair: tuple[int, int], answer: Wrong, witnesses: Witnesses) -> Finding:
    """At what nobody declared: an error where both witnesses refute it, as values at two draws are."""
    if answer.nonfinite:
        is_certain = answer.both and answer.smooth
        return made if is_certain else replace(made, severity=Severity.WARNING)
    is_certain = answer.both or answer.rounded or pair in witnesses.suspected
    witnesses.suspected |= set() if answer.rounded else {pair}
    if is_certain or made.severity is not Severity.ERROR:
        return made
    return replace(made, code="GV109", suspected=made.code, severity=Severity.WARNING)


def how_it_bends(asked: Asked) -> str:
    """How backward is not linear in grad_output, as a cause; empty where it is linear."""
    u, w = (probe(asked.problem.outputs.size, k) for k in (211, 223))
    given = torch.stack([u, w, 2 * u, u + w])
    # Each from a forward of its own: a backward may spoil what it saved.
    rows = [asked.claim.afresh().row(one) for one in (*given, alone(u, slice(1)))]
    if any(isinstance(row, Raised) for row in rows):
        return ""
    found = torch.stack([row for row in rows if isinstance(row, Tensor)])
    (a, b, twice, both), first = found[:-1], found[-1]
    if bool(((twice == a) & (a == b) & (first == a)).all()) and bool(a.any()):
        return "grad-output-ones"
    size = (a.abs() + b.abs()).nan_to_num(0.0)
    short = asked.values.steps.is_short or has_digits_of_float32(found)
    bar = (OF_FLOAT32 if short else PROPORTIONAL) * (size + size.mean())
    off = torch.maximum((twice - 2 * a).abs(), (both - a - b).abs())
    if not bool((off > bar).any()):
        return ""
    moved = spread_of_rows(asked.problem, given, asked.values.steps.epsilon)
    off = off if moved is None else off - FACTOR * moved.sum(dim=0)
    return "grad-output-nonlinear" if bool(((off > bar) & a.isfinite() & b.isfinite()).any()) else ""


LINEAR = {
    "grad-output-ones": (
        "backward ignores grad_output",
        "Multiply by grad_output: it is not always ones.",
    ),
    "grad-output-nonlinear": (
        "it is not linear in grad_output",
        "Backward must multiply grad_output by the derivative: twice of it, twice the gradient.",
    ),
}
"""What is said of each cause, and its hint."""


def nonlinear(finding: Finding, cause: str) -> Finding:
    """The same with what is said of a backward that is not linear in grad_output."""
    said, hint = LINEAR[cause]
    return replace(finding, code="GV106", message=f"{finding.message}; and {said}", hint=hint, cause=cause)


ACCIDENTS = frozenset(
    {"NameError", "AttributeError", "IndexError", "KeyError", "UnboundLocalError", "AssertionError"}
)
"""Exceptions that are never raised to refuse a double backward."""


def ask_second(sample: Sample, first: Asked, *, prove: bool) -> CheckResult:
    """Judge the derivative of backward at one grad_output, in the inputs and in grad_output.

    At values that nobody declared both witnesses must speak against it.
    """
    second, before = second_problem(sample), launches()
    made = second.graph(second.primals)
    if isinstance(made, Raised):
        return _raised(sample, made.error)
    is_kernel = launches() > before or (sample.is_native and _runs_kernels(sample, before))
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
        if is_kernel and not _others(sample, made.value):  # of which hardly any second derivative is meant
            told = (replace(f, hint=FIRST_ORDER_ONLY, severity=Severity.WARNING) for f in told)
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
    is_cut_off = not any(g.requires_grad for g in graph.value.outputs)
    cut = _cut_by_kernel(sample) if is_cut_off and _runs_kernels(sample, before) else None
    return CheckResult((cut,) if cut else (), Outcome.NOT_RUN, capability="wrong" if cut else "")


def _runs_kernels(sample: Sample, before: int) -> bool:
    """Whether kernels were launched since so many were, or backward calls compiled code."""
    function, operator = sample.subject.function_class, sample.subject.operator
    backward = own_backward(function) if function is not None else getattr(operator, "backward", None)
    return launches() > before or (backward is not None and bool(compiled_calls([backward])))


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


def _others(sample: Sample, graph: Graph) -> set[str]:
    """Names of further Functions that backward applies: whose derivative is written, too."""
    own = getattr(sample.subject.function_class, "__qualname__", "")
    return {name for _, name in applied_functions(graph.outputs)} - {own}


def _with_change(sample: Sample, finding: Finding, graph: Graph) -> Finding:
    """The finding with the change that refuses a second derivative, where it is cut off.

    Torch's own formulas are right, so that without another Function in backward only a constant makes the
    derivative wrong.
    """
    function = sample.subject.function_class
    if function is None:
        return finding
    cause = finding.cause if _others(sample, graph) else "detached"
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
