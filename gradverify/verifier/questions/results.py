"""Both orders by witnesses, as the results that questions and native dtypes go on from.

A target without a float64 path is judged in its native dtypes alone (GV101, GV302, GV601, GV602), by the
witnesses as in float64: derived is what forward's operations give in float64 at the rounded inputs, or the
reference. What rounding loses is judged beside the same truth. With neither, slopes in float32 may fail it at
declared typical values, and pass nothing (`precision.md` §6).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import product

import torch

from gradverify.model import Closeness, Finding, Outcome, Point, Precision, Severity, Swept
from gradverify.model.case import points_of
from gradverify.verifier.guard import Raised
from gradverify.verifier.guard.memory import hand_back
from gradverify.verifier.inputs.native_values import NATIVE
from gradverify.verifier.questions.dtypes.asked import OF_A_GRADIENT, in_arithmetic, together
from gradverify.verifier.questions.dtypes.calls import NO_TRUTH, plainly
from gradverify.verifier.questions.findings import (
    NOT_RUN,
    SAME_NUMBERS,
    CheckResult,
    FirstOrder,
    Uncovered,
    errors_of,
    invented,
    is_open,
    number,
    outcome_of,
)
from gradverify.verifier.questions.orders import (
    ask_first,
    ask_second,
    disconnected,
    graph_alone,
    refused_empty,
)
from gradverify.verifier.questions.reference import ask_reference, ask_surrogate
from gradverify.verifier.questions.structured import wrong_with_structure
from gradverify.verifier.questions.subject import Native, Sample, graph_of, prepare, tensors_in
from gradverify.verifier.questions.verified import known as verified_at
from gradverify.verifier.questions.ways import as_in_a_penalty
from gradverify.verifier.questions.witnessing import (
    bounds_of,
    largest,
    options_of,
    other_values,
    witnesses_of,
)
from gradverify.verifier.witnesses.values import probe

SINGLE = "float32"
"""The shortest dtype in which slopes can be measured."""

UNSTEADY = "forward gives other values at each call, random states replayed"

HINTS = {
    Point.WIDE: "At moderate values it is right. Look for a branch or a clamp that backward does not share "
    "with forward. If such values are not valid, say so in the spec with `range` or `domain`.",
    Point.SPECIAL: "At ordinary values it is right: these hold zeros, ties or duplicates. If such values "
    "are not valid, say so in the spec with `avoid`, `domain` or `distinct`.",
}


NOT_MEASURED = FirstOrder(NOT_RUN, judged=False)


def _judged(sample: Sample, *, declared: bool, prove: bool = False) -> FirstOrder:
    """The first order of a sample, once; every pair is uncovered where nothing can be asked."""
    last = sample.subject.learnt.get(FirstOrder)
    if last and last[0] is sample:
        return last[1]  # type: ignore[no-any-return]
    made = graph_of(sample)
    if isinstance(made, Raised):
        return _uncovered(sample, Uncovered(f"forward raised {made.error.type}"))
    known = options_of(sample)
    if known.formats is None and other_values(sample, made.value, known):
        known.unsteady = True
    if known.unsteady:
        return _uncovered(sample, Uncovered(UNSTEADY, SAME_NUMBERS))
    values = sample.problem.outputs.flatten(made.value.outputs)
    found = ask_first(sample, made.value, declared=declared, prove=prove)
    sample.subject.learnt[FirstOrder] = (sample, found, values)
    return found


def _uncovered(sample: Sample, why: Uncovered) -> FirstOrder:
    pairs = product(sample.problem.output_positions, sample.problem.input_names)
    return FirstOrder(CheckResult((), Outcome.INCONCLUSIVE, dict.fromkeys(pairs, why)), judged=False)


def values_at(sample: Sample) -> torch.Tensor | None:
    """What forward returns at a sample (M), as it was judged; None where it raises."""
    last = sample.subject.learnt.get(FirstOrder)
    if last and last[0] is sample:
        return last[2]  # type: ignore[no-any-return]
    values = sample.problem.evaluate(sample.problem.primals)
    return None if isinstance(values, Raised) else sample.problem.outputs.flatten(values.value)


def _is_alone(sample: Sample) -> bool:
    """Whether values in few digits are its only witness."""
    return sample.is_native and options_of(sample).alone


def _is_typical(sample: Sample) -> bool:
    """Whether floating values are typical: at special ones they are where no floating input has such."""
    floating = (t for t in tensors_in(sample.case) if getattr(torch, t.dtype).is_floating_point)
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
    found = _judged(sample, declared=declared, prove=sample.is_first_draw or sample.point is Point.SPECIAL)
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
    if meant is None or meant.function is None:
        return NOT_RUN
    return _compared(ask_surrogate(sample, meant, meant.function))


def second_order(sample: Sample) -> CheckResult:
    """The same of the derivative of backward; beyond the first draw only where it was seen to have one."""
    known = options_of(sample)
    once = sample.is_first_draw and sample.subject.is_first_of_options
    again = sample.point is Point.TYPICAL and sample.draw > 0  # other points are further apart
    if again or not (once or known.twice):
        return NOT_RUN
    judged = _judged(sample, declared=True, prove=once)
    if judged.whole is None or not (once or judged.closed):
        return NOT_RUN
    found = ask_second(sample, judged.whole, prove=once)
    if once:
        known.twice = found.capability == "yes"
        return _in_a_penalty(sample, found) if known.twice else found
    errors = tuple(f for f in found.findings if f.severity is Severity.ERROR or f.code == "GV109")
    known.twice = not errors  # one sample says it
    return CheckResult(errors, found.outcome if errors else Outcome.NOT_RUN)


def _in_a_penalty(sample: Sample, found: CheckResult) -> CheckResult:
    """The same with what is lost where not everything requires grad."""
    subject = sample.subject
    base = None if subject.brief or subject.across is not None else verified_at(sample)
    if base is None:
        return found
    lost = as_in_a_penalty(base)
    return replace(found.beside(lost), capability="wrong" if lost.findings else found.capability)


def reference(sample: Sample, first: FirstOrder) -> CheckResult:
    """Beside the composite that the spec names: its values, and its gradients once the own are verified."""
    function = sample.subject.reference
    if function is None:
        return NOT_RUN
    # The reference may be right where values tell nothing.
    visible = 0.0 if first.result.not_judged else first.result.smallest_visible_error or 0.0
    found = _compared(ask_reference(sample, function, visible, gradients=first.verified))
    return found if found.findings or first.verified else NOT_RUN


def _compared(findings: Iterable[Finding]) -> CheckResult:
    """Inconclusive where nothing could be compared."""
    found = CheckResult.of(*findings)
    return replace(found, outcome=Outcome.INCONCLUSIVE) if is_open(found.findings) else found


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
    branches = sample.point is Point.SPECIAL and options_of(sample).compares
    found = _judged(sample, declared=False, prove=branches and _is_alone_there(sample))
    if found.judgement is None or found.asked is None:
        return replace(found, result=NOT_RUN)
    told, drawn = found.result.findings, points_of(sample.case, sample.subject.settings.effort)
    # It was seen to be meant.
    if (sample.point, sample.draw) in drawn and options_of(sample).twice and found.closed:
        told += errors_of(ask_second(sample, found.asked, prove=False).findings)
    certain = (f for f in told if f.code != "GV109" or f.suspected)
    return replace(found, result=_hinted(certain, sample.point, found.result.witnesses))


ASIDE = 2.0**-12
"""How far from zeros and ties, relative to an entry and the largest one, a gradient is beside theirs."""

ALIKE, ANOTHER = 1e-2, 0.1
"""Shares of a gradient by which two are the same, and from which on they are not."""


def _is_alone_there(sample: Sample) -> bool:
    """Whether its gradient is one on both sides of zeros or ties, and another at them.

    As where a branch returns a limit: torch derives the branch, and what backward shares with it is wrong.
    """
    inputs, outputs = sample.inputs, sample.problem.outputs
    x, u = inputs.flatten(sample.problem.primals), outputs.unflatten(probe(outputs.size, sample.key + 1))
    step = ASIDE * (x.abs() + largest(x)) * probe(len(x), sample.key)
    low, high = bounds_of(sample) or (x - torch.inf, x + torch.inf)
    step = torch.where((x + step < low) | (x + step > high), -step, step)  # at an end both lie inside
    other = torch.where((x - step < low) | (x - step > high), x + 2 * step, x - step)
    rows: list[torch.Tensor] = []
    for moved in (x, x + step, other):
        found = sample.problem.pull_back(inputs.unflatten(moved), u)
        if isinstance(found, Raised):
            return False
        rows.append(inputs.flatten(found.value))
        if rows[1:] and torch.allclose(rows[0], rows[-1], rtol=ANOTHER, atol=ALIKE * largest(rows[0])):
            return False
    here, after, before = rows
    size = torch.maximum(after.abs(), before.abs())
    alike, another = (after - before).abs() <= ALIKE * size, (here - after).abs() > ANOTHER * size
    return bool((alike & another).any())


def _hinted(
    findings: Iterable[Finding], point: Point, witnesses: frozenset[str] = frozenset()
) -> CheckResult:
    found = (replace(f, hint=f"{HINTS.get(point, '')} {f.hint}".strip()) for f in findings)
    return CheckResult.of(*found, witnesses=witnesses)


def _as_meant(sample: Sample) -> FirstOrder:
    """Where backward is not the gradient of its surrogate, as far as both are finite."""
    result = surrogate(sample)
    errors = errors_of(result.findings)
    found = [f for f in errors if f.entries and math.isfinite(f.entries.worst[0].actual)]
    return FirstOrder(_hinted(found, Point.WIDE), judged=bool(found) or result.outcome is Outcome.PASSED)


def _beside_float64(sample: Sample) -> FirstOrder:
    """What is grossly wrong there beside the same in float64."""
    found = in_arithmetic(sample, plainly(sample.subject.native), asked=False)
    wrong = (f for f in errors_of(found.findings) if f.code in OF_A_GRADIENT)
    known = any(row.closeness is not Closeness.UNKNOWN for row in found.swept.precision)
    return FirstOrder(CheckResult.of(*wrong), judged=known)


ON_PURPOSE = "its gradient is deliberately not the derivative"
"""Why nothing is held against a slope of forward."""

ALL_OF_IT = "all gradients together"
"""The value of a row of the table that speaks of all of them."""

NAME_A_REFERENCE = "Name a `reference:` of plain torch operations: it runs in float64, and shows every entry."

NAME_A_SURROGATE = (
    "Name a function of plain torch operations whose gradient is meant for every input, as `surrogate: "
    "module:function`; it runs in float64."
)


def judged_alone(sample: Sample) -> FirstOrder:
    """A native sample: its gradient, and at the first typical draw what each of its dtypes rounds."""
    subject = sample.subject
    found = _natively(sample) if subject.surrogate is None else _natively_as_meant(sample)
    result, rows = found.result, found.result.swept.precision
    if rows and all(row.closeness is not Closeness.UNKNOWN for row in rows):
        result = replace(result, swept=replace(result.swept, native=subject.why_native))
    elif sample.is_first_draw and result.outcome in {Outcome.PASSED, Outcome.NOT_RUN}:
        open_already = result.uncovered or is_open(result.findings)
        unknown = () if open_already else (_not_judged(sample, rows[0].reason if rows else NO_TRUTH),)
        result = replace(result, findings=(*result.findings, *unknown), outcome=Outcome.INCONCLUSIVE)
    return replace(found, result=_of_guesses(result) if subject.inferred else result, single_precision=True)


def no_float64_path(sample: Sample) -> Finding:
    """The note that says so."""
    return sample.finding(
        "GV104",
        f"there is no float64 path: {sample.subject.why_native}",
        hint="It was judged in native dtypes alone, which hide more than float64 does.",
        severity=Severity.NOTE,
    )


def second_order_natively(sample: Sample) -> CheckResult:
    """The same of its double backward in float32, which values alone tell nothing of."""
    found = graph_alone(sample)
    if found.capability:
        return found
    told = sample.subject.native == SINGLE and not options_of(sample).alone
    return second_order(sample) if told else NOT_RUN


def _not_judged(sample: Sample, reason: str) -> Finding:
    said = f"there is no float64 path, and {sample.subject.native} could not be judged: {reason}"
    meant = sample.subject.surrogate is not None
    return sample.finding("GV109", said, hint=NAME_A_SURROGATE if meant else NAME_A_REFERENCE)


def _natively(sample: Sample) -> FirstOrder:
    """By the witnesses in float32; beside what rounds, in each listed dtype."""
    subject, single = sample.subject, _in_float32(sample)
    listed = tuple(d for d in subject.dtypes if d in NATIVE)
    asked, once = bool(listed), sample.is_first_draw
    rounds = together(
        in_arithmetic(sample, plainly(dtype), asked=asked, in_full=True)
        for dtype in (listed or (subject.native,) if once else ())
    )
    of_gradients = [f for f in errors_of(rounds.findings) if f.code in OF_A_GRADIENT]
    others = tuple(f for f in rounds.findings if f not in of_gradients)
    if outcome_of(others) is Outcome.FAILED:  # digits, or other values: nothing else counts
        return FirstOrder(replace(rounds, findings=others))
    if single is None:  # operations that were recorded in 16 bits are confirmed by nothing
        return FirstOrder(NOT_RUN if subject.reference is None else rounds)
    first, known = first_order(single), options_of(sample)
    result, seen = first.result, first.result.smallest_visible_error or 0.0
    row = Precision(subject.native, ALL_OF_IT, Closeness.COARSE, hides=seen)
    if result.outcome is Outcome.FAILED:
        result = _with(result, replace(row, closeness=Closeness.WRONG, hides=None))
    elif known.alone or known.first.refuted:
        result = _by_values_alone(sample, result, rounds, seen) if once else result
    elif once:
        kept = Outcome.PASSED if rounds.outcome is Outcome.FAILED else rounds.outcome
        result = result.beside(replace(rounds, findings=others, outcome=kept))
    elif result.outcome is Outcome.PASSED:
        result = _with(result, row)
    return replace(first, result=result)


def _with(result: CheckResult, *rows: Precision) -> CheckResult:
    return replace(result, swept=Swept(precision=rows))


def _in_float32(sample: Sample) -> Sample | None:
    """The sample in float32, in which slopes can be measured; None where forward refuses it."""
    if sample.subject.native == SINGLE:
        return sample
    subject = replace(sample.subject, precision=Native(SINGLE, sample.subject.why_native))
    there = prepare(subject, sample.case, sample.point, sample.draw)
    return there if isinstance(there, Sample) and there.is_native else None


def _by_values_alone(sample: Sample, result: CheckResult, rounds: CheckResult, seen: float) -> CheckResult:
    """Slopes that agree pass nothing: they would not have shown a small error."""
    if result.outcome is not Outcome.PASSED:
        return result
    others = [row for row in rounds.swept.precision if row.dtype != SINGLE]
    said = f"; {others[0].dtype} was not judged: {others[0].reason}" if others else ""
    how = "finite differences"
    open_still = sample.finding(
        "GV109",
        f"no float64 path and no composite: {how} in {SINGLE} agree with it here, and would have shown an "
        f"error above {number(seen)} of a gradient; a smaller one could hide{said}",
        hint=NAME_A_REFERENCE,
    )
    row = Precision(SINGLE, ALL_OF_IT, Closeness.COARSE, hides=seen, reason=how)
    made = replace(result, findings=(*result.findings, open_still), outcome=Outcome.INCONCLUSIVE)
    return _with(made, row, *others)


def _natively_as_meant(sample: Sample) -> FirstOrder:
    """Beside the surrogate's gradient, whatever forward's slopes are."""
    meant, dtype = sample.subject.surrogate, sample.subject.native
    if meant is None or meant.function is None or meant.inputs:
        return FirstOrder(CheckResult((_not_judged(sample, ON_PURPOSE),), Outcome.INCONCLUSIVE))
    known = options_of(sample)
    known.formats = known.formats or frozenset(b.dtype for b in sample.problem.outputs.blocks)
    result = surrogate(sample)
    if result.outcome is Outcome.PASSED:
        row = Precision(dtype, ALL_OF_IT, Closeness.COARSE, hides=known.epsilon, reason="the surrogate")
        result = _with(result, row)
    return FirstOrder(result, proven=result.outcome is Outcome.PASSED)


def _of_guesses(result: CheckResult) -> CheckResult:
    """The same where the inputs were inferred: what a guess may have made is asked for in float64 alone."""
    doubt = ["that such inputs are valid (there is no float64 path to look more closely)"]
    findings = tuple(invented(f, doubt) if f.severity is Severity.ERROR else f for f in result.findings)
    outcome = Outcome.INCONCLUSIVE if result.outcome is Outcome.FAILED else result.outcome
    return replace(result, findings=findings, outcome=outcome)
