"""First order of a sample: what the judge answers, as findings, and what there is where it measures nothing.

That is where backward raises (GV102), where nothing connects (GV003), and size 0 (GV412): forward and
backward must run and give the right shapes there all the same.
"""

from __future__ import annotations

import re
from dataclasses import replace

import torch
from torch import Tensor

from gradverify.model import Finding, Outcome, Point, RaisedError, Severity, indexed, tensors_of
from gradverify.verifier.guard import Raised, lacking
from gradverify.verifier.guard.memory import filled_memory
from gradverify.verifier.guard.raised_errors import fails_to_import
from gradverify.verifier.numerics.problem import Graph
from gradverify.verifier.questions.findings import (
    WHY,
    gradient_of,
    imprecise_gradient,
    not_known,
    number,
    output_name,
    wrong_gradient,
)
from gradverify.verifier.questions.result import CheckResult, FirstOrder, Uncovered
from gradverify.verifier.questions.subject import Sample, first_line
from gradverify.verifier.questions.witnessing import Witnesses, first_order, witnesses_of
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
from gradverify.verifier.witnesses.claim import spread_of_rows
from gradverify.verifier.witnesses.judge import judge
from gradverify.verifier.witnesses.proof import OF_FLOAT32
from gradverify.verifier.witnesses.rounding import FACTOR, SIXTEEN_BITS, has_digits_of_float32
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
        found = sample.finding("GV412", said, hint=EMPTY, severity=Severity.ERROR, raised=error)
        return FirstOrder(CheckResult.of(found))
    gradient = inputs.flatten(result.value)
    is_given_nothing = any(isinstance(a.value, Tensor) and not a.value.numel() for a in sample.arguments)
    if not (gradient != 0).any() or not is_given_nothing:
        return None
    worst = int((gradient != 0).int().argmax())
    number_of = inputs.block_of(worst)
    name = problem.input_names[number_of]
    place, value = indexed(name, inputs.blocks[number_of].index(worst)), number(gradient[worst].item())
    said = f"what forward returns is empty, and the gradient of {place} is {value}, not 0"
    found = sample.finding("GV412", said, hint=OF_NOTHING, input=name, severity=Severity.ERROR)
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
    return sample.finding("GV102", said, hint=hint, raised=error)


def disconnected(sample: Sample) -> FirstOrder:
    """GV003."""
    names = " and ".join(output_name(p, sample.outputs_returned) for p in sample.disconnected)
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
    every = {pair: _finding(sample, asked, pair, answer) for pair, answer in answers.items()}
    made = {pair: finding for pair, finding in every.items() if finding is not None}
    new = {pair for pair, a in answers.items() if isinstance(a, Wrong) and not a.again}
    if new and any(f.code == "GV101" for f in made.values()) and (bends := how_it_bends(asked)):
        made = {pair: nonlinear(f, bends) if f.code == "GV101" else f for pair, f in made.items()}
    witnesses.ordinary |= new if sample.point is Point.TYPICAL else set()
    # What is wrong at another sample, too, is called the same there.
    witnesses.wrong |= {pair: made[pair].code for pair in new if declared}
    result = CheckResult.of(
        *made.values(),
        uncovered=_uncovered(sample, answers),
        smallest_visible_error=max(
            (a.visible for a in answers.values() if isinstance(a, Right) and a.visible is not None),
            default=None,
        ),
        not_judged=sum(a.count for a in answers.values() if isinstance(a, NotJudged)),
        witnesses=found.witnesses,
    )
    is_open = result.uncovered or any(f.code == "GV109" for f in made.values())
    if is_open and result.outcome is Outcome.PASSED:
        result = replace(result, outcome=Outcome.INCONCLUSIVE)
    known = witnesses.of(sample)
    sixteen = bool((known.formats or frozenset()) & SIXTEEN_BITS)  # which are carried out in float64 first
    return FirstOrder(
        result,
        single_precision=known.is_short and not sixteen,
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
    declares = any(t.name == name and 0.0 in t.special for i in sample.case.inputs for t in tensors_of(i))
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
    found = asked.claim.afresh().rows(torch.cat([given, alone(u, slice(1))[None]]))
    if isinstance(found, Raised):
        return ""
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
