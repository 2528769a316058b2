"""Both orders by witnesses, as the results that questions and native dtypes go on from."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from gradverify.model import Closeness, Finding, Outcome, Point, Severity, tensors_of
from gradverify.model.case import points_of
from gradverify.verifier.guard import Raised
from gradverify.verifier.guard.memory import hand_back
from gradverify.verifier.numerics.problem import Graph
from gradverify.verifier.questions.dtypes.asked import in_arithmetic
from gradverify.verifier.questions.dtypes.calls import plainly
from gradverify.verifier.questions.dtypes.words import OF_A_GRADIENT
from gradverify.verifier.questions.findings import WHY
from gradverify.verifier.questions.first_order import disconnected, refused_empty
from gradverify.verifier.questions.orders import First, ask_first
from gradverify.verifier.questions.reference import ask_reference, ask_surrogate
from gradverify.verifier.questions.result import (
    OTHER_VALUES,
    SAME_NUMBERS,
    CheckResult,
    FirstOrder,
    Uncovered,
    outcome_of,
)
from gradverify.verifier.questions.second_order import ask_second
from gradverify.verifier.questions.structured import wrong_with_structure
from gradverify.verifier.questions.subject import Sample
from gradverify.verifier.questions.witnessing import other_values, witnesses_of
from gradverify.verifier.witnesses.answers import Imprecise, NotJudged, Right, Unknown, Wrong
from gradverify.verifier.witnesses.rounding import SIXTEEN_BITS

SINGLE = "float32"
"""The shortest dtype in which slopes can be measured."""

UNSTEADY = "forward gives other values at each call, random states replayed"

HINTS = {
    Point.WIDE: "At moderate values it is right. Look for a branch or a clamp that backward does not share "
    "with forward. If such values are not valid, say so in the spec with `range` or `domain`.",
    Point.SPECIAL: "At ordinary values it is right: these hold zeros, ties or duplicates. If such values "
    "are not valid, say so in the spec with `avoid`, `domain` or `distinct`.",
}

NOT_RUN = CheckResult(outcome=Outcome.NOT_RUN)

NOT_MEASURED = FirstOrder(NOT_RUN, judged=False)


@dataclass(frozen=True)
class _Judged:
    """The last sample, whose first order its second one goes on from."""

    sample: Sample
    graph: Graph
    first: First


def _judged(sample: Sample, *, declared: bool, prove: bool) -> _Judged | str:
    """The first order of a sample, with the graph of its call; or why nothing can be asked."""
    last = sample.subject.learnt.get(_Judged)
    if isinstance(last, _Judged) and last.sample is sample:
        return last
    made = sample.problem.graph(sample.problem.primals)
    if isinstance(made, Raised):
        return f"forward raised {made.error.type}"
    witnesses = witnesses_of(sample)
    known = witnesses.of(sample)
    if known.formats is None and other_values(sample, made.value, known):
        known.unsteady = True
    if known.unsteady:
        return UNSTEADY
    first = ask_first(sample, made.value, witnesses, declared=declared, prove=prove)
    judged = sample.subject.learnt[_Judged] = _Judged(sample, made.value, first)
    return judged


def values_at(sample: Sample) -> torch.Tensor | None:
    """What forward returns at a sample (M), as it was judged; None where it raises."""
    last = sample.subject.learnt.get(_Judged)
    if isinstance(last, _Judged) and last.sample is sample:
        return sample.problem.outputs.flatten(last.graph.outputs)
    values = sample.problem.evaluate(sample.problem.primals)
    return None if isinstance(values, Raised) else sample.problem.outputs.flatten(values.value)


def _is_alone(sample: Sample) -> bool:
    """Whether values in few digits are its only witness."""
    return sample.is_native and witnesses_of(sample).of(sample).alone


def _is_typical(sample: Sample) -> bool:
    """Whether floating values are typical: at special ones they are where no floating input has such."""
    every = [t for i in sample.case.inputs for t in tensors_of(i)]
    floating = (t for t in every if getattr(torch, t.dtype).is_floating_point)
    ordinary = not any(t.special or t.ties or t.structure for t in floating)
    special = (sample.point, sample.draw) == (Point.SPECIAL, 0)
    return sample.point is Point.TYPICAL or (special and ordinary and not sample.case.hook)


def first_order(sample: Sample) -> FirstOrder:
    """As the judge finds it, at a declared sample."""
    if sample.disconnected:
        return disconnected(sample)
    empty = refused_empty(sample)
    if empty is not None:
        return empty
    # Slopes in float32 alone refute at typical values, whatever labels and indices are.
    declared = _is_typical(sample) or not _is_alone(sample)
    judged = _judged(sample, declared=declared, prove=sample.is_first_draw)
    result = _result(sample, judged)
    if isinstance(judged, str):
        return result
    # Linearity needs no slope: where these are all there is, it is asked of what they leave open as well.
    linear = judged.first.verified or (_is_alone(sample) and result.result.outcome is not Outcome.FAILED)
    here = sample.is_first_draw or sample.point is Point.SPECIAL
    if not (linear and here and sample.subject.is_first_of_options):
        return result
    findings = tuple(wrong_with_structure(sample, judged.first.asked))
    return replace(result, result=result.result.beside(CheckResult(findings, outcome_of(findings))))


def beyond(sample: Sample) -> FirstOrder:
    """The first order at a size that no spec lists: an error needs both witnesses."""
    return _result(sample, _judged(sample, declared=False, prove=False))


def _result(sample: Sample, judged: _Judged | str) -> FirstOrder:
    """Findings, and what could not be judged of each pair."""
    names, positions = sample.problem.input_names, sample.problem.output_positions
    uncovered: dict[tuple[int, str], Uncovered] = {}
    if isinstance(judged, str):
        why = Uncovered(judged, SAME_NUMBERS if judged == UNSTEADY else OTHER_VALUES)
        uncovered = dict.fromkeys([(p, n) for p in positions for n in names], why)
        return FirstOrder(CheckResult((), Outcome.INCONCLUSIVE, uncovered), judged=False)
    found, known = judged.first, witnesses_of(sample).of(sample)
    if found.judgement is None:
        result = CheckResult(found.findings, found.outcome)
        return FirstOrder(result, judged=False, raised=found.findings[0].raised)
    answers = found.answers
    for (o, i), answer in answers.items():
        if (isinstance(answer, Unknown) and not answer.mismatch) or (
            isinstance(answer, NotJudged) and answer.whole
        ):
            uncovered[positions[o], names[i]] = Uncovered(*WHY[answer.reason])
    is_passed = found.outcome is Outcome.PASSED
    result = CheckResult(
        found.findings,
        Outcome.INCONCLUSIVE if uncovered and is_passed else found.outcome,
        uncovered,
        found.visible,
        not_judged=sum(a.count for a in answers.values() if isinstance(a, NotJudged)),
        witnesses=found.judgement.witnesses,
    )
    sixteen = bool((known.formats or frozenset()) & SIXTEEN_BITS)  # which are carried out in float64 first
    return FirstOrder(
        result,
        single_precision=known.is_short and not sixteen,
        proven=all(isinstance(a, Right | Imprecise | NotJudged) for a in answers.values()),
        judged=any(isinstance(a, Right | Wrong | Imprecise) for a in answers.values()),
    )


def surrogate(sample: Sample) -> CheckResult:
    """Beside the composite whose gradient is meant."""
    meant = sample.subject.surrogate
    if meant is None or meant.function is None:
        return NOT_RUN
    findings = tuple(ask_surrogate(sample))
    return CheckResult(findings, _outcome(findings))


def second_order(sample: Sample) -> CheckResult:
    """The same of the derivative of backward; beyond the first draw only where it was seen to have one."""
    known = witnesses_of(sample).of(sample)
    once = sample.is_first_draw and sample.subject.is_first_of_options
    judged = _judged(sample, declared=True, prove=once) if once or known.twice else ""
    if isinstance(judged, str) or not judged.first.verified or not (once or judged.first.closed):
        return NOT_RUN
    found = ask_second(sample, judged.first.asked, witnesses_of(sample), prove=once)
    if once:
        known.twice = found.capability == "yes"
        return found
    errors = tuple(f for f in found.findings if f.severity is Severity.ERROR or f.code == "GV109")
    known.twice = not errors  # one sample says it
    return CheckResult(errors, found.outcome if errors else Outcome.NOT_RUN)


def reference(sample: Sample, first: FirstOrder) -> CheckResult:
    """Beside the composite that the spec names: its values, and its gradients once the own are verified."""
    if sample.subject.reference is None:
        return NOT_RUN
    # The reference may be right where values tell nothing.
    visible = 0.0 if first.result.not_judged else first.result.smallest_visible_error or 0.0
    findings = tuple(ask_reference(sample, visible, gradients=first.verified))
    return CheckResult(findings, _outcome(findings)) if findings or first.verified else NOT_RUN


def _outcome(findings: tuple[Finding, ...]) -> Outcome:
    """Inconclusive where nothing could be compared."""
    return Outcome.INCONCLUSIVE if any(f.code == "GV109" for f in findings) else outcome_of(findings)


def at_undeclared(sample: Sample) -> FirstOrder:
    """Judge the first order at one undeclared point; findings are the certain ones."""
    few = sample.subject.native not in {"", SINGLE}  # in 16 bits no slope shows
    if sample.disconnected or _is_alone(sample) or (few and sample.point is not Point.TYPICAL):
        return NOT_MEASURED
    if sample.subject.reader is not None:
        sample.subject.reader.reset()
    if few:
        return _beside_float64(sample)
    if sample.subject.surrogate is not None:
        return _as_meant(sample)
    hand_back(sample.inputs.size)
    judged = _judged(sample, declared=False, prove=False)
    known = _result(sample, judged)
    if isinstance(judged, str) or judged.first.judgement is None:
        return replace(known, result=NOT_RUN)
    found, twice = judged.first, tuple[Finding, ...]()
    drawn = (sample.point, sample.draw) in points_of(sample.case, sample.subject.settings.effort)
    # It was seen to be meant.
    if drawn and witnesses_of(sample).of(sample).twice and found.closed:
        second = ask_second(sample, found.asked, witnesses_of(sample), prove=False)
        twice = tuple(f for f in second.findings if f.severity is Severity.ERROR)
    certain = (f for f in (*found.findings, *twice) if f.code != "GV109" or f.suspected)
    return replace(known, result=_hinted(certain, sample.point, known.result.witnesses))


def _hinted(
    findings: Iterable[Finding], point: Point, witnesses: frozenset[str] = frozenset()
) -> CheckResult:
    found = tuple(replace(f, hint=f"{HINTS.get(point, '')} {f.hint}".strip()) for f in findings)
    return CheckResult(found, outcome_of(found), witnesses=witnesses)


def _as_meant(sample: Sample) -> FirstOrder:
    """Where backward is not the gradient of its surrogate, as far as both are finite."""
    result = surrogate(sample)
    errors = (f for f in result.findings if f.severity is Severity.ERROR and f.entries is not None)
    found = [f for f in errors if f.entries and math.isfinite(f.entries.worst[0].actual)]
    return FirstOrder(_hinted(found, Point.WIDE), judged=bool(found) or result.outcome is Outcome.PASSED)


def _beside_float64(sample: Sample) -> FirstOrder:
    """What is grossly wrong there beside the same in float64."""
    found = in_arithmetic(sample, plainly(sample.subject.native), asked=False)
    wrong = tuple(f for f in found.findings if f.code in OF_A_GRADIENT and f.severity is Severity.ERROR)
    known = any(row.closeness is not Closeness.UNKNOWN for row in found.swept.precision)
    return FirstOrder(CheckResult(wrong, outcome_of(wrong)), judged=known)
