"""A target without a float64 path, in its native dtypes alone (GV101, GV302, GV601, GV602).

The gradient is judged by the witnesses as in float64: derived is what forward's operations give in float64
at the rounded inputs, or the reference. What rounding loses is judged beside the same truth. With neither,
slopes in float32 may fail it at declared typical values, and pass nothing (`precision.md` §6).
"""

from __future__ import annotations

from dataclasses import replace

from gradverify.model import Closeness, Finding, Outcome, Point, Precision, Severity, Swept
from gradverify.verifier.inputs.native_values import NATIVE
from gradverify.verifier.questions.dtypes.asked import in_arithmetic, together
from gradverify.verifier.questions.dtypes.calls import NO_TRUTH, plainly
from gradverify.verifier.questions.dtypes.words import OF_A_GRADIENT
from gradverify.verifier.questions.result import CheckResult, FirstOrder, outcome_of
from gradverify.verifier.questions.results import SINGLE, first_order, second_order, surrogate
from gradverify.verifier.questions.samples import prepare
from gradverify.verifier.questions.second_order import graph_alone
from gradverify.verifier.questions.subject import Native, Sample
from gradverify.verifier.questions.witnessing import witnesses_of
from gradverify.verifier.questions.wording import invented, number

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
    found = _judged(sample) if subject.surrogate is None else _as_meant(sample)
    result, rows = found.result, found.result.swept.precision
    if rows and all(row.closeness is not Closeness.UNKNOWN for row in rows):
        result = replace(result, swept=replace(result.swept, native=subject.why_native))
    elif _is_once(sample) and result.outcome in {Outcome.PASSED, Outcome.NOT_RUN}:
        open_already = result.uncovered or any(f.code == "GV109" for f in result.findings)
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
    if found.outcome is not Outcome.NOT_RUN or found.capability:
        return found
    told = sample.subject.native == SINGLE and not witnesses_of(sample).of(sample).alone
    return second_order(sample) if told else CheckResult(outcome=Outcome.NOT_RUN)


def _is_once(sample: Sample) -> bool:
    return (sample.point, sample.draw) == (Point.TYPICAL, 0)


def _not_judged(sample: Sample, reason: str) -> Finding:
    said = f"there is no float64 path, and {sample.subject.native} could not be judged: {reason}"
    meant = sample.subject.surrogate is not None
    return sample.finding("GV109", said, hint=NAME_A_SURROGATE if meant else NAME_A_REFERENCE)


def _judged(sample: Sample) -> FirstOrder:
    """By the witnesses in float32; beside what rounds, in each listed dtype."""
    subject, single = sample.subject, _in_float32(sample)
    listed = tuple(d for d in subject.dtypes if d in NATIVE)
    asked, once = bool(listed), _is_once(sample)
    rounds = together(
        in_arithmetic(sample, plainly(dtype), asked=asked, in_full=True)
        for dtype in (listed or (subject.native,) if once else ())
    )
    of_gradients = [f for f in rounds.findings if f.severity is Severity.ERROR and f.code in OF_A_GRADIENT]
    others = tuple(f for f in rounds.findings if f not in of_gradients)
    if outcome_of(others) is Outcome.FAILED:  # digits, or other values: nothing else counts
        return FirstOrder(replace(rounds, findings=others))
    if single is None:  # operations that were recorded in 16 bits are confirmed by nothing
        told = once and subject.reference is not None
        return FirstOrder(rounds if told else CheckResult(outcome=Outcome.NOT_RUN))
    first, known = first_order(single), witnesses_of(sample).of(sample)
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


def _as_meant(sample: Sample) -> FirstOrder:
    """Beside the surrogate's gradient, whatever forward's slopes are."""
    meant, dtype = sample.subject.surrogate, sample.subject.native
    if meant is None or meant.function is None or meant.inputs:
        return FirstOrder(CheckResult((_not_judged(sample, ON_PURPOSE),), Outcome.INCONCLUSIVE))
    known = witnesses_of(sample).of(sample)
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
