"""Both orders by witnesses, as the results that questions and native dtypes go on from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import torch

from gradverify.model import Closeness, Finding, Outcome, Point, Severity, tensors_of
from gradverify.model.case import points_of
from gradverify.verifier.guard import Raised
from gradverify.verifier.guard.memory import hand_back
from gradverify.verifier.questions.dtypes.asked import in_arithmetic
from gradverify.verifier.questions.dtypes.calls import plainly
from gradverify.verifier.questions.dtypes.words import OF_A_GRADIENT
from gradverify.verifier.questions.first_order import disconnected, refused_empty
from gradverify.verifier.questions.orders import ask_first
from gradverify.verifier.questions.reference import ask_reference, ask_surrogate
from gradverify.verifier.questions.result import (
    SAME_NUMBERS,
    CheckResult,
    FirstOrder,
    Uncovered,
)
from gradverify.verifier.questions.samples import graph_of, prepare
from gradverify.verifier.questions.second_order import ask_second
from gradverify.verifier.questions.structured import wrong_with_structure
from gradverify.verifier.questions.subject import Sample
from gradverify.verifier.questions.witnessing import other_values, witnesses_of

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


def _judged(sample: Sample, *, declared: bool, prove: bool = False) -> FirstOrder:
    """The first order of a sample, once; every pair is uncovered where nothing can be asked."""
    last = sample.subject.learnt.get(FirstOrder)
    if isinstance(last, tuple) and last[0] is sample:
        return last[1]  # type: ignore[no-any-return]
    made = graph_of(sample)
    if isinstance(made, Raised):
        return _uncovered(sample, Uncovered(f"forward raised {made.error.type}"))
    known = witnesses_of(sample).of(sample)
    if known.formats is None and other_values(sample, made.value, known):
        known.unsteady = True
    if known.unsteady:
        return _uncovered(sample, Uncovered(UNSTEADY, SAME_NUMBERS))
    values = sample.problem.outputs.flatten(made.value.outputs)
    found = ask_first(sample, made.value, declared=declared, prove=prove)
    sample.subject.learnt[FirstOrder] = (sample, found, values)
    return found


def _uncovered(sample: Sample, why: Uncovered) -> FirstOrder:
    names, positions = sample.problem.input_names, sample.problem.output_positions
    uncovered = dict.fromkeys([(p, n) for p in positions for n in names], why)
    return FirstOrder(CheckResult((), Outcome.INCONCLUSIVE, uncovered), judged=False)


def values_at(sample: Sample) -> torch.Tensor | None:
    """What forward returns at a sample (M), as it was judged; None where it raises."""
    last = sample.subject.learnt.get(FirstOrder)
    if isinstance(last, tuple) and last[0] is sample:
        return last[2]  # type: ignore[no-any-return]
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
    found = _judged(sample, declared=declared, prove=sample.is_first_draw)
    # Linearity needs no slope: where these are all there is, it is asked of what they leave open as well.
    linear = found.whole or (_is_alone(sample) and found.result.outcome is not Outcome.FAILED and found.asked)
    here = sample.is_first_draw or sample.point is Point.SPECIAL
    if not (linear and here and sample.subject.is_first_of_options):
        return found
    findings = wrong_with_structure(sample, linear)
    return replace(found, result=found.result.beside(CheckResult.of(*findings)))


def beyond(sample: Sample) -> FirstOrder:
    """The first order at a size that no spec lists: an error needs both witnesses."""
    if sample.subject.reader is not None:
        sample.subject.reader.reset()
    return at_two_draws(sample, partial(_judged, declared=False))


def at_two_draws(sample: Sample, judge: Callable[[Sample], FirstOrder]) -> FirstOrder:
    """A judgement at a size of its own; at another draw, too, where values alone are to say it twice.

    What earlier samples have cost leaves none of these without calls.
    """
    found = _with_calls(sample, judge)
    if not any(f.suspected for f in found.result.findings):
        return found
    again = prepare(sample.subject, sample.case, sample.point, sample.draw + 1)
    second = _with_calls(again, judge) if isinstance(again, Sample) else found
    return second if second.result.outcome is Outcome.FAILED else found


def _with_calls(sample: Sample, judge: Callable[[Sample], FirstOrder]) -> FirstOrder:
    budget = witnesses_of(sample).budget
    budget.left = max(budget.left, budget.of_a_sample)
    return judge(sample)


def surrogate(sample: Sample) -> CheckResult:
    """Beside the composite whose gradient is meant."""
    meant = sample.subject.surrogate
    return NOT_RUN if meant is None or meant.function is None else _compared(ask_surrogate(sample))


def second_order(sample: Sample) -> CheckResult:
    """The same of the derivative of backward; beyond the first draw only where it was seen to have one."""
    known = witnesses_of(sample).of(sample)
    once = sample.is_first_draw and sample.subject.is_first_of_options
    if not (once or known.twice):
        return NOT_RUN
    judged = _judged(sample, declared=True, prove=once)
    if judged.whole is None or not (once or judged.closed):
        return NOT_RUN
    found = ask_second(sample, judged.whole, prove=once)
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
    found = _compared(ask_reference(sample, visible, gradients=first.verified))
    return found if found.findings or first.verified else NOT_RUN


def _compared(findings: Iterable[Finding]) -> CheckResult:
    """Inconclusive where nothing could be compared."""
    found = CheckResult.of(*findings)
    is_open = any(f.code == "GV109" for f in found.findings)
    return replace(found, outcome=Outcome.INCONCLUSIVE) if is_open else found


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
    found = _judged(sample, declared=False)
    if found.judgement is None:
        return replace(found, result=NOT_RUN)
    told, drawn = found.result.findings, points_of(sample.case, sample.subject.settings.effort)
    # It was seen to be meant.
    twice = (sample.point, sample.draw) in drawn and witnesses_of(sample).of(sample).twice and found.closed
    if twice and found.asked is not None:
        second = ask_second(sample, found.asked, prove=False)
        told += tuple(f for f in second.findings if f.severity is Severity.ERROR)
    certain = (f for f in told if f.code != "GV109" or f.suspected)
    return replace(found, result=_hinted(certain, sample.point, found.result.witnesses))


def _hinted(
    findings: Iterable[Finding], point: Point, witnesses: frozenset[str] = frozenset()
) -> CheckResult:
    found = (replace(f, hint=f"{HINTS.get(point, '')} {f.hint}".strip()) for f in findings)
    return CheckResult.of(*found, witnesses=witnesses)


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
    return FirstOrder(CheckResult.of(*wrong), judged=known)
