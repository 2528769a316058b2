"""Both orders by witnesses, as the results that questions and native dtypes go on from."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from gradverify.model import Closeness, Finding, Outcome, Point, RaisedError, Severity, tensors_of
from gradverify.model.case import points_of
from gradverify.verifier.guard import Raised
from gradverify.verifier.guard.memory import hand_back
from gradverify.verifier.numerics.problem import Graph
from gradverify.verifier.questions.dtypes.asked import in_arithmetic
from gradverify.verifier.questions.dtypes.calls import plainly
from gradverify.verifier.questions.dtypes.words import OF_A_GRADIENT
from gradverify.verifier.questions.findings import OTHER_VALUES, WHY
from gradverify.verifier.questions.first_order import disconnected, refused_empty
from gradverify.verifier.questions.orders import First, ask_first
from gradverify.verifier.questions.reference import ask_reference, ask_surrogate
from gradverify.verifier.questions.result import SAME_NUMBERS, CheckResult, FirstOrder, Uncovered, outcome_of
from gradverify.verifier.questions.second_order import ask_second
from gradverify.verifier.questions.structured import wrong_with_structure
from gradverify.verifier.questions.subject import Sample
from gradverify.verifier.questions.witnessing import other_values, witnesses_of
from gradverify.verifier.questions.wording import is_finite
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


@dataclass(frozen=True)
class AtUndeclared:
    """What came of one undeclared draw."""

    result: CheckResult
    judged: bool
    """Something of the Jacobian could be measured there."""
    raised: RaisedError | None = None
    """What backward raised."""


SILENCE = AtUndeclared(CheckResult(outcome=Outcome.NOT_RUN), judged=False)


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
    first = ask_first(sample, made.value, witnesses, declared=declared, listed=declared, prove=prove)
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


def _is_once(sample: Sample) -> bool:
    return (sample.point, sample.draw) == (Point.TYPICAL, 0)


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
    judged = _judged(sample, declared=declared, prove=_is_once(sample))
    if isinstance(judged, str):
        return FirstOrder(CheckResult((), Outcome.INCONCLUSIVE, _nothing_known(sample, judged)))
    found = judged.first
    findings = list(found.findings)
    first_of_options = sample.subject.is_first_of_options
    asked_more = first_of_options and (_is_once(sample) or sample.point is Point.SPECIAL)
    # Linearity needs no slope: where these are all there is, it is asked of what they leave open as well.
    linear = found.verified or (_is_alone(sample) and found.outcome is not Outcome.FAILED)
    if linear and found.asked is not None and asked_more:
        findings += wrong_with_structure(sample, found.asked, smooth=_is_once(sample))
    result = _result(sample, found, findings)
    known = witnesses_of(sample).of(sample)
    proven = _is_right_as_far_as_it_shows(found) and result.outcome is Outcome.PASSED
    sixteen = bool((known.formats or frozenset()) & SIXTEEN_BITS)  # which are carried out in float64 first
    return FirstOrder(result, proven=proven, single_precision=known.is_short and not sixteen)


def _is_right_as_far_as_it_shows(found: First) -> bool:
    """Whether what could be judged of every pair is right: rounding may hide some entries of a pair."""
    answers = found.judgement.answers.values() if found.judgement is not None else ()
    return found.judgement is not None and all(
        isinstance(a, Right | Imprecise) or (isinstance(a, NotJudged) and not a.whole) for a in answers
    )


def _result(sample: Sample, found: First, findings: list[Finding]) -> CheckResult:
    """Findings, and what could not be judged of each pair."""
    names, positions = sample.problem.input_names, sample.problem.output_positions
    uncovered: dict[tuple[int, str], Uncovered] = {}
    visible: list[float] = []
    not_judged = 0
    for (o, i), answer in (found.judgement.answers if found.judgement is not None else {}).items():
        if isinstance(answer, NotJudged):
            not_judged += answer.count
        if (isinstance(answer, Unknown) and not answer.mismatch) or (
            isinstance(answer, NotJudged) and answer.whole
        ):
            reason, hint = WHY[answer.reason]
            uncovered[positions[o], names[i]] = Uncovered(reason, hint)
        elif isinstance(answer, Right) and answer.visible is not None:
            visible.append(answer.visible)
    outcome, spoke = found.outcome, found.judgement.witnesses if found.judgement is not None else frozenset()
    if uncovered and outcome is Outcome.PASSED:
        outcome = Outcome.INCONCLUSIVE
    if any(f.severity is Severity.ERROR for f in findings):
        outcome = Outcome.FAILED
    return CheckResult(
        tuple(findings),
        outcome,
        uncovered,
        max(visible, default=None),
        not_judged=not_judged,
        witnesses=spoke,
    )


def _nothing_known(sample: Sample, why: str) -> dict[tuple[int, str], Uncovered]:
    pairs = ((p, n) for p in sample.problem.output_positions for n in sample.problem.input_names)
    hint = SAME_NUMBERS if why == UNSTEADY else OTHER_VALUES
    return {pair: Uncovered(why, hint) for pair in pairs}


def beyond(sample: Sample) -> FirstOrder:
    """The first order at a size that no spec lists: an error needs both witnesses."""
    judged = _judged(sample, declared=False, prove=False)
    if isinstance(judged, str):
        return FirstOrder(CheckResult((), Outcome.INCONCLUSIVE, _nothing_known(sample, judged)))
    found = judged.first
    result = _result(sample, found, [*found.findings])
    return FirstOrder(result, proven=found.verified and result.outcome is Outcome.PASSED)


def surrogate(sample: Sample) -> CheckResult:
    """Beside the composite whose gradient is meant."""
    meant, made = sample.subject.surrogate, sample.problem.graph(sample.problem.primals)
    if isinstance(made, Raised) or meant is None or meant.function is None:
        return CheckResult(outcome=Outcome.NOT_RUN)
    findings = tuple(ask_surrogate(sample, made.value, witnesses_of(sample).of(sample)))
    return CheckResult(findings, _outcome(findings))


def _as_meant(sample: Sample) -> AtUndeclared:
    """Where backward is not the gradient of its surrogate, as far as both are finite."""
    result = surrogate(sample)
    differing = (f for f in result.findings if f.severity is Severity.ERROR)
    found = tuple(
        replace(f, hint=f"{HINTS[Point.WIDE]} {f.hint}")
        for f in differing
        if f.entries is not None and is_finite(f.entries)
    )
    judged = bool(found) or result.outcome is Outcome.PASSED
    return AtUndeclared(CheckResult(found, outcome_of(found)), judged)


def second_order(sample: Sample) -> CheckResult:
    """The same of the derivative of backward; beyond the first draw only where it was seen to have one."""
    known = witnesses_of(sample).of(sample)
    once = _is_once(sample) and sample.subject.is_first_of_options
    if not once and not known.twice:
        return CheckResult(outcome=Outcome.NOT_RUN)
    judged = _judged(sample, declared=True, prove=once)
    if isinstance(judged, str) or not judged.first.verified or not (once or judged.first.closed):
        return CheckResult(outcome=Outcome.NOT_RUN)
    assert judged.first.asked is not None  # noqa: S101 - it is verified
    found = ask_second(sample, judged.graph, judged.first.asked, witnesses_of(sample), prove=once)
    if once:
        known.twice = found.capability == "yes"
        return found
    errors = tuple(f for f in found.findings if f.severity is Severity.ERROR or f.code == "GV109")
    known.twice = not errors  # one sample says it
    return CheckResult(errors, found.outcome if errors else Outcome.NOT_RUN, capability="")


def reference(sample: Sample, first: FirstOrder) -> CheckResult:
    """Beside the composite that the spec names: its values, and its gradients once the own are verified."""
    if sample.subject.reference is None:
        return CheckResult(outcome=Outcome.NOT_RUN)
    made = sample.problem.graph(sample.problem.primals)
    if isinstance(made, Raised):
        return CheckResult(outcome=Outcome.NOT_RUN)
    known, visible = witnesses_of(sample).of(sample), first.result.smallest_visible_error or 0.0
    if first.result.not_judged:  # the reference may be right where values tell nothing
        visible = 0.0
    findings = tuple(ask_reference(sample, made.value, known, visible, gradients=first.verified))
    if not findings and not first.verified:
        return CheckResult(outcome=Outcome.NOT_RUN)
    return CheckResult(findings, _outcome(findings))


def _outcome(findings: tuple[Finding, ...]) -> Outcome:
    """Inconclusive where nothing could be compared."""
    return Outcome.INCONCLUSIVE if any(f.code == "GV109" for f in findings) else outcome_of(findings)


def _is_of_few_digits(sample: Sample) -> bool:
    """Whether it is called in 16 bits, where no slope shows."""
    return sample.subject.native not in {"", SINGLE}


def _beside_float64(sample: Sample) -> AtUndeclared:
    """What is grossly wrong there beside the same in float64."""
    found = in_arithmetic(sample, plainly(sample.subject.native), asked=False)
    wrong = tuple(f for f in found.findings if f.code in OF_A_GRADIENT and f.severity is Severity.ERROR)
    known = any(row.closeness is not Closeness.UNKNOWN for row in found.swept.precision)
    return AtUndeclared(CheckResult(wrong, outcome_of(wrong)), judged=known)


def at_undeclared(sample: Sample) -> AtUndeclared:
    """Judge the first order at one undeclared point; findings are the certain ones."""
    few = _is_of_few_digits(sample)
    if sample.disconnected or _is_alone(sample) or (few and sample.point is not Point.TYPICAL):
        return SILENCE
    if sample.subject.reader is not None:
        sample.subject.reader.reset()
    if few or sample.subject.surrogate is not None:
        return _beside_float64(sample) if few else _as_meant(sample)
    hand_back(sample.inputs.size)
    judged = _judged(sample, declared=False, prove=False)
    if isinstance(judged, str):
        return SILENCE
    found = judged.first
    if found.judgement is None:
        return replace(SILENCE, raised=found.findings[0].raised)
    twice: tuple[Finding, ...] = ()
    drawn = (sample.point, sample.draw) in points_of(sample.case, sample.subject.settings.effort)
    # It was seen to be meant.
    if drawn and witnesses_of(sample).of(sample).twice and found.closed and found.asked is not None:
        second = ask_second(sample, judged.graph, found.asked, witnesses_of(sample), prove=False)
        twice = tuple(f for f in second.findings if f.severity is Severity.ERROR)
    findings = tuple(
        replace(f, hint=f"{HINTS.get(sample.point, '')} {f.hint}".strip())
        for f in (*found.findings, *twice)
        if f.code != "GV109" or f.suspected
    )
    result = CheckResult(findings, outcome_of(findings), witnesses=found.judgement.witnesses)
    told = any(isinstance(a, Right | Wrong | Imprecise) for a in found.judgement.answers.values())
    return AtUndeclared(result, judged=told)
