"""First order of a sample: what the judge answers, as findings."""

from __future__ import annotations

from dataclasses import replace

import torch

from gradverify.model import Finding, Outcome, Point, Severity, tensors_of
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.problem import Graph
from gradverify.verifier.questions.findings import WHY, imprecise_gradient, not_known, wrong_gradient
from gradverify.verifier.questions.first_order import backward_raised
from gradverify.verifier.questions.result import CheckResult, FirstOrder, Uncovered
from gradverify.verifier.questions.subject import Sample
from gradverify.verifier.questions.witnessing import Witnesses, first_order, witnesses_of
from gradverify.verifier.questions.wording import gradient_of
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
