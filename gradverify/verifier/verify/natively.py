"""A target without a float64 path, in its native dtypes alone (GV101, GV302, GV601, GV602).

The gradient is judged by the witnesses as in float64: derived is what forward's operations give in float64 at
the rounded inputs, or the reference. What rounding loses is judged beside the same truth. With neither, slopes
in float32 may fail it at declared typical values, and pass nothing (`precision.md` §6).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradverify.model import Closeness, Finding, Outcome, Point, Precision, Severity, Swept
from gradverify.verifier.checks.dtypes.asked import Found, in_dtype, is_wrong, together
from gradverify.verifier.checks.dtypes.calls import NativeCall, Truth, exact_arguments, in_float64
from gradverify.verifier.checks.dtypes.places import Against
from gradverify.verifier.checks.dtypes.words import OF_A_GRADIENT, OWN_FLOAT32
from gradverify.verifier.checks.result import CheckResult, FirstOrder
from gradverify.verifier.checks.samples import prepare
from gradverify.verifier.checks.subject import Native, Sample, Subject
from gradverify.verifier.checks.wording import invented, number
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.native_values import NATIVE
from gradverify.verifier.numerics.calling import returned_tensors
from gradverify.verifier.verify.results import first_order, witnesses_of
from gradverify.verifier.verify.structured import wrong_with_structure
from gradverify.verifier.verify.witnessing import against

SINGLE = "float32"
"""The dtype in which slopes can be measured."""

NO_TRUTH = "it has no float64 path and no composite in plain torch operations"

ON_PURPOSE = "its gradient is deliberately not the derivative"
"""Why nothing is held against a slope of forward."""

NAME_A_REFERENCE = "Name a `reference:` of plain torch operations: it runs in float64, and shows every entry."

NAME_A_SURROGATE = (
    "Name a function of plain torch operations whose gradient is meant for every input, as `surrogate: "
    "module:function`; it runs in float64."
)


def no_float64_path(sample: Sample) -> Finding:
    """The note that says so."""
    return sample.finding(
        "GV104",
        f"there is no float64 path: {sample.subject.why_native}",
        hint="It was judged in native dtypes alone, which hide more than float64 does.",
        severity=Severity.NOTE,
    )


def judged_alone(sample: Sample) -> FirstOrder:
    """A native sample: its gradient, and at the first typical draw what each of its dtypes rounds."""
    subject = sample.subject
    if subject.surrogate is not None:
        found = _as_meant(sample)
    else:
        found = _judged(sample)
    rows = found.result.swept.precision
    known = bool(rows) and all(row.closeness is not Closeness.UNKNOWN for row in rows)
    result = found.result
    if known:
        result = replace(result, swept=replace(result.swept, native=subject.why_native))
    elif result.outcome in {Outcome.PASSED, Outcome.NOT_RUN} and _is_once(sample):
        result = replace(result, outcome=Outcome.INCONCLUSIVE)
    return replace(found, result=_of_guesses(result) if subject.inferred else result, single_precision=True)


def _is_once(sample: Sample) -> bool:
    return (sample.point, sample.draw) == (Point.TYPICAL, 0)


def is_twice_natively(sample: Sample) -> bool:
    """Whether a second derivative has a witness: values in float32 alone tell nothing of one."""
    is_derivative = sample.subject.surrogate is None and sample.subject.native == SINGLE
    return is_derivative and not witnesses_of(sample).of(sample).alone


def in_float64_of(subject: Subject) -> Against:
    """What a target without a float64 path is held against."""
    name = "the reference" if subject.reference is not None else "forward's operations in float64"
    name = name if subject.surrogate is None else "the surrogate"

    def at(call: NativeCall) -> Truth | str:
        wide = in_float64(subject, call.problem, call.exact.arguments, call.outputs)
        found = NO_TRUTH if wide is None else Truth.of(wide, call)
        if isinstance(found, Raised):
            return f"{name} cannot be differentiated in float64: {found.error.type}"
        return found

    return Against(name, at)


def _judged(sample: Sample) -> FirstOrder:
    """By the witnesses in float32; beside what rounds, in each listed dtype."""
    single = _in_float32(sample)
    rounds = [_in_each(sample, dtype) for dtype in _dtypes(sample)] if _is_once(sample) else []
    loses = [f for found, _ in rounds for f in found if f.severity is Severity.ERROR]
    if any(f.code not in OF_A_GRADIENT for f in loses):  # more digits, or other values: nothing else counts
        kept = [([f for f in found if f.code not in OF_A_GRADIENT], rows) for found, rows in rounds]
        return FirstOrder(together(kept))
    if single is None:
        return FirstOrder(together(rounds) if rounds else CheckResult(outcome=Outcome.NOT_RUN))
    first = first_order(single)
    known = witnesses_of(sample).of(sample)
    alone = known.alone or known.first.refuted
    result = replace(first.result, findings=tuple(_named(f, loses) for f in first.result.findings))
    if result.outcome is Outcome.FAILED:
        row = Precision(sample.subject.native, "", Closeness.WRONG)
        return replace(first, result=result.beside(CheckResult((), swept=Swept(precision=(row,)))))
    if not rounds:
        right = (Precision(sample.subject.native, "", Closeness.COARSE, hides=_visible(first)),)
        return replace(first, result=result if alone else replace(result, swept=_swept(first, right)))
    if alone:
        return replace(first, result=result.beside(_by_values_alone(sample, first, rounds)))
    kept = [([f for f in found if f not in loses], rows) for found, rows in rounds]
    return replace(first, result=result.beside(together(kept)))


def _swept(first: FirstOrder, rows: tuple[Precision, ...]) -> Swept:
    return Swept(precision=rows) if first.result.outcome is Outcome.PASSED else Swept()


def _visible(first: FirstOrder) -> float:
    return first.result.smallest_visible_error or 0.0


def _in_float32(sample: Sample) -> Sample | None:
    """The sample in float32, in which slopes can be measured; None where forward refuses it."""
    if sample.subject.native == SINGLE:
        return sample
    subject = replace(sample.subject, precision=Native(SINGLE, sample.subject.why_native))
    there = prepare(subject, sample.case, sample.point, sample.draw)
    return there if isinstance(there, Sample) and there.is_native else None


def _dtypes(sample: Sample) -> tuple[str, ...]:
    return tuple(d for d in sample.subject.dtypes if d in NATIVE) or (sample.subject.native,)


def _in_each(sample: Sample, dtype: str) -> Found:
    """One dtype beside float64; of 16 bits without a truth there, beside its own float32."""
    asked = dtype in sample.subject.dtypes
    found, rows = in_dtype(sample, in_float64_of(sample.subject), dtype, asked=asked, in_full=True)
    if rows and rows[0].reason == NO_TRUTH and dtype != SINGLE:
        found, rows = in_dtype(sample, Against(OWN_FLOAT32, _own_float32), dtype, asked=True)
        rows = [replace(row, reason=row.reason or f"against {OWN_FLOAT32}") for row in rows]
    return found, rows


def _own_float32(call: NativeCall) -> Truth | str:
    """The target in float32: what is rounded too often shows beside it, a formula that is wrong does not."""
    found = Truth.of(replace(call.exact, function=_through_float32(call.exact.function)), call)
    return f"in float32 it raises {found.error.type}" if isinstance(found, Raised) else found


def _through_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of float64 tensors that computes in float32."""

    def called(*arguments: Any) -> tuple[Any, ...]:  # noqa: ANN401 - user code's arguments and result
        given = [_cast(a, torch.float64, torch.float32) for a in arguments]
        return tuple(_cast(r, torch.float32, torch.float64) for r in returned_tensors(function(*given)))

    return called


def _cast(value: Any, of: torch.dtype, to: torch.dtype) -> Any:  # noqa: ANN401 - any argument
    return value.to(to) if isinstance(value, Tensor) and value.dtype is of else value


def _by_values_alone(sample: Sample, first: FirstOrder, rounds: Sequence[Found]) -> CheckResult:
    """Slopes that agree pass nothing: they would not have shown a small error."""
    if first.result.outcome is not Outcome.PASSED:
        return CheckResult((), Outcome.INCONCLUSIVE)
    visible, how = _visible(first), "finite differences"
    beside = [([f for f in found if f.code != "GV109"], rows) for found, rows in rounds]
    known = [([], [r]) for _, rows in beside for r in rows if r.value and r.closeness is not Closeness.UNKNOWN]
    row = Precision(SINGLE, "all gradients together", Closeness.COARSE, hides=visible, reason=how)
    open_still = sample.finding(
        "GV109",
        f"no float64 path and no composite: {how} in {SINGLE} agree with it here, and would have shown an "
        f"error above {number(visible)} of a gradient; a smaller one could hide"
        + (f"; other dtypes were held against {OWN_FLOAT32}" if known else ""),
        hint=NAME_A_REFERENCE,
    )
    noted = [(found, []) for found, _ in beside]
    return together([*noted, *known, ([open_still], [] if known else [row])])


def _named(finding: Finding, loses: Sequence[Finding]) -> Finding:
    """A finding of the witnesses with the factor that was seen beside float64."""
    same = next((f for f in loses if f.cause and f.input == finding.input), None)
    if same is None or finding.cause or finding.code != "GV101":
        return finding
    said = f"{finding.message}: it is {same.factor:g} times the derivative" if same.factor else finding.message
    return replace(finding, message=said, cause=same.cause, factor=same.factor)


def _as_meant(sample: Sample) -> FirstOrder:
    """Beside the surrogate's gradient, whatever forward's slopes are."""
    subject = sample.subject
    if subject.reference is None:
        said = f"there is no float64 path, and {subject.native} could not be judged: {ON_PURPOSE}"
        unknown = sample.finding("GV109", said, hint=NAME_A_SURROGATE)
        return FirstOrder(CheckResult((unknown,), Outcome.INCONCLUSIVE))
    truth = in_float64_of(subject)
    found, rows = in_dtype(sample, truth, subject.native, asked=subject.native in subject.dtypes, in_full=True)
    made = sample.problem.graph(sample.problem.primals)
    if not is_wrong(found) and not isinstance(made, Raised) and _is_once(sample):
        wide = in_float64(subject, sample.problem, exact_arguments(sample), made.value.outputs)
        known = witnesses_of(sample).of(sample)
        if wide is not None:
            found += wrong_with_structure(sample, against(sample, made.value, wide, known))
    result = together([([_of_surrogate(f) for f in found], rows)])
    return FirstOrder(result, proven=result.outcome is Outcome.PASSED)


def _of_surrogate(finding: Finding) -> Finding:
    return replace(finding, code="GV302") if finding.code == "GV101" else finding


def _of_guesses(result: CheckResult) -> CheckResult:
    """The same where the inputs were inferred: what a guess may have made is asked for in float64 alone."""
    doubt = ["that such inputs are valid (there is no float64 path to look more closely)"]
    findings = tuple(invented(f, doubt) if f.severity is Severity.ERROR else f for f in result.findings)
    outcome = Outcome.INCONCLUSIVE if result.outcome is Outcome.FAILED else result.outcome
    return replace(result, findings=findings, outcome=outcome)
