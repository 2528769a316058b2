"""First order of a sample, as findings."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from gradverify.model import Finding, Outcome, Point, Severity, tensors_of
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.problem import CallProblem, Graph
from gradverify.verifier.questions.findings import (
    imprecise_gradient,
    not_known,
    wrong_gradient,
)
from gradverify.verifier.questions.first_order import DRAW_IN_FORWARD, OF_NUMBERS, backward_raised
from gradverify.verifier.questions.subject import Sample
from gradverify.verifier.questions.witnessing import Witnesses, first_order
from gradverify.verifier.questions.wording import gradient_of
from gradverify.verifier.witnesses.answers import (
    Answer,
    Asked,
    Imprecise,
    Judgement,
    Reason,
    Right,
    Trust,
    Unknown,
    Wrong,
)
from gradverify.verifier.witnesses.claim import Claim, spread_of_rows
from gradverify.verifier.witnesses.judge import judge
from gradverify.verifier.witnesses.proof import OF_FLOAT32, proved
from gradverify.verifier.witnesses.rounding import FACTOR, has_digits_of_float32
from gradverify.verifier.witnesses.values import probe

PROPORTIONAL = 1e-9
"""Relative deviation from a multiple, or a sum, that is no rounding of a linear backward in float64."""


@dataclass(frozen=True)
class First:
    """The first order of a sample."""

    asked: Asked
    judgement: Judgement | None
    """None where backward raised."""
    findings: tuple[Finding, ...]
    outcome: Outcome

    @property
    def answers(self) -> dict[tuple[int, int], Answer]:
        """Of each (output, input)."""
        return {} if self.judgement is None else self.judgement.answers

    @property
    def verified(self) -> bool:
        """Every pair is right: what builds on the gradient may be asked."""
        right = all(isinstance(a, Right | Imprecise) for a in self.answers.values())
        return self.judgement is not None and right

    @property
    def closed(self) -> bool:
        """Proof or agreement closed it: there is no kink, and no digits are lost."""
        return self.judgement is not None and self.judgement.closed

    @property
    def visible(self) -> float | None:
        """The largest error that would have been seen in some pair; None where none is right."""
        right = (a.visible for a in self.answers.values() if isinstance(a, Right))
        return max((seen for seen in right if seen is not None), default=None)


def ask_first(sample: Sample, graph: Graph, witnesses: Witnesses, *, declared: bool, prove: bool) -> First:
    """Judge the gradient of a sample; an exception is a note at what nobody `declared`."""
    asked = first_order(sample, graph, witnesses, declared=declared)
    found = judge(asked, prove=prove)
    witnesses.refuted |= asked.trust.refuted
    if isinstance(found, Raised):
        raised = backward_raised(sample, found.error)
        outcome = Outcome.INCONCLUSIVE if raised.code in {"GV001", "GV109"} else Outcome.FAILED
        if not declared:
            raised, outcome = replace(raised, severity=Severity.NOTE), Outcome.NOT_RUN
        return First(asked, None, (raised,), outcome)
    every = {pair: _finding(sample, asked, pair, a, witnesses) for pair, a in found.answers.items()}
    made = {pair: finding for pair, finding in every.items() if finding is not None}
    new = {pair for pair, a in found.answers.items() if isinstance(a, Wrong) and not a.again}
    made = _with_causes(asked, made, measured=bool(new))
    witnesses.ordinary |= new if sample.point is Point.TYPICAL else set()
    # What is wrong at another sample, too, is called the same there.
    witnesses.wrong |= {pair: made[pair].code for pair in new if declared}
    errors = any(f.severity is Severity.ERROR for f in made.values())
    unknown = any(f.code == "GV109" for f in made.values())
    outcome = Outcome.FAILED if errors else Outcome.INCONCLUSIVE if unknown else Outcome.PASSED
    return First(asked, found, tuple(made.values()), outcome)


Findings = dict[tuple[int, int], Finding]
"""By (output, input)."""


def _with_causes(asked: Asked, made: Findings, *, measured: bool) -> Findings:
    """Findings with a cause that needs no Jacobian: not linear, or drawn once more."""
    bends = how_it_bends(asked) if measured and any(f.code == "GV101" for f in made.values()) else ""
    if bends:
        made = {pair: nonlinear(f, bends) if f.code == "GV101" else f for pair, f in made.items()}
    unexplained = {pair: f for pair, f in made.items() if f.code in OF_NUMBERS}
    if asked.declared and any(not f.cause for f in unexplained.values()) and _draws(asked):
        for pair, f in unexplained.items():
            made[pair] = replace(f, cause="random-numbers", hint=DRAW_IN_FORWARD)
    return made


def _finding(
    sample: Sample, asked: Asked, pair: tuple[int, int], answer: Answer, witnesses: Witnesses
) -> Finding | None:
    """What is said of an answer, None of a right one, and of what nobody could measure."""
    position, name = sample.problem.output_positions[pair[0]], sample.problem.input_names[pair[1]]
    if isinstance(answer, Wrong):
        if answer.again:
            return _again(sample, position, name, witnesses.wrong.get(pair, "GV101"))
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


def _again(sample: Sample, position: int, name: str, code: str) -> Finding:
    """That it is wrong here too: the sample where it was measured says more."""
    said = f"{gradient_of(sample, position, name)} is wrong here, too"
    return sample.finding(code, said, output=position, input=name, badness=0.0, severity=Severity.ERROR)


def how_it_bends(asked: Asked) -> str:
    """How backward is not linear in grad_output, as a cause; empty where it is linear."""
    u, w = (probe(asked.problem.outputs.size, k) for k in (211, 223))
    given = torch.stack([u, w, 2 * u, u + w])
    found = asked.claim.afresh().rows(given)
    if isinstance(found, Raised):
        return ""
    a, b, twice, both = found
    if bool(((twice == a) & (a == b)).all()) and bool(a.any()):
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


def _draws(asked: Asked) -> bool:
    """Whether backward draws random numbers, and is right where it finds those that forward drew."""
    problem = asked.problem
    if not isinstance(problem, CallProblem) or problem.random_states.untouched():
        return False
    alone = replace(problem, random_states=problem.random_states.forwards_alone())
    proof = proved(replace(asked, problem=alone, claim=Claim(alone), derived=None, trust=Trust()))
    return not isinstance(proof, Raised) and proof.closed


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
