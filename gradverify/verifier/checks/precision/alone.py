"""A target without a float64 path, judged in its native dtypes alone.

Held against a composite in float64: the reference, or the operations that forward ran. With neither, the
slope along the gradient is measured in float32, and the report says how large an error could hide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradverify.model import (
    Case,
    CasePoint,
    Closeness,
    Finding,
    Outcome,
    Point,
    Precision,
    RaisedError,
    Severity,
)
from gradverify.verifier.checks.first_order import NO_FLOAT64_PATH, is_given_short
from gradverify.verifier.checks.inconclusive import invented
from gradverify.verifier.checks.precision.arithmetic import NATIVE, plainly
from gradverify.verifier.checks.precision.autocast import autocast
from gradverify.verifier.checks.precision.beside import in_dtype, together
from gradverify.verifier.checks.precision.native import NativeCall, native_arguments, values_at
from gradverify.verifier.checks.precision.place import Place
from gradverify.verifier.checks.precision.truth import OWN_FLOAT32, FromNative, OwnFloat32
from gradverify.verifier.checks.result import CheckResult, FirstOrder
from gradverify.verifier.checks.subject import (
    NoSample,
    Sample,
    Subject,
    arguments_at,
    first_line,
    prepared,
)
from gradverify.verifier.checks.wording import number
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.precision.along_gradient import AlongGradient, along_gradient

ORDER = ("float32", "bfloat16", "float16")
"""What a target that refuses float64 is tried in, where no dtype is listed."""

LINEAR = 2.0**10
"""Factor of the grad_output for which the gradient must be multiplied exactly: a power of two."""

EXACT = 4.0
"""Units of rounding of the largest entry that scaling may change: none in plain torch, atomics a few."""


def single_inside(sample: Sample, first: FirstOrder) -> CheckResult:
    """A forward that accepts float64 and computes in float32: float64 has shown only large mistakes."""
    if first.result.outcome is Outcome.FAILED or is_given_short(sample):
        return CheckResult(outcome=Outcome.NOT_RUN)
    listed = tuple(d for d in sample.subject.dtypes if d in NATIVE)
    results = [_alone(sample, dtype) for dtype in listed or ORDER[:1]]
    return _native(together(results), "forward computes in float32 inside")


def judged_natively(result: CheckResult) -> CheckResult:
    """The first order without what native dtypes have judged in its place."""
    left = {key: one for key, one in result.uncovered.items() if one.reason != NO_FLOAT64_PATH}
    return replace(result, uncovered=left)


def refusing_float64(
    subject: Subject, case: Case, point: Point, draw: int, error: RaisedError
) -> tuple[Sample, CheckResult] | None:
    """Judge a target whose forward raised in float64; None where it runs in no native dtype either."""
    arguments = arguments_at(subject, case, point, draw)
    if subject.surrogate is not None or isinstance(arguments, Raised):
        return None
    listed = tuple(d for d in subject.dtypes if d in NATIVE)
    samples: dict[str, Sample | None] = {}
    for dtype in listed or ORDER:
        pair = native_arguments(arguments, dtype, lambda argument: argument.value)
        if pair is None or (not listed and any(samples.values())):
            continue
        where = CasePoint(case.id, case.sizes, case.options, point, draw)
        made = prepared(subject, case, where, pair[0])
        samples[dtype] = None if isinstance(made, NoSample) else replace(made, arguments=arguments)
    ran = {dtype: sample for dtype, sample in samples.items() if sample is not None}
    if not ran:
        return None
    sample = [*ran.values()][-1]
    results = [_alone(one, dtype) for dtype, one in ran.items()]
    refused = [dtype for dtype in samples if listed and dtype not in ran]
    results += [([_not_judged(sample, dtype, "forward refuses it")], []) for dtype in refused]
    said = f"{error.type}: {first_line(error.message)}"
    result = _native(together(results), f"forward raises in float64: {said}")
    note = sample.finding(
        "GV104",
        f"there is no float64 path: forward raises {said}",
        hint="It was judged in native dtypes alone, which hide more than float64 does.",
        severity=Severity.NOTE,
    )
    result = _of_guesses(result) if subject.inferred else result
    noted = replace(result, findings=(note, *result.findings))
    judged = bool(result.swept.native)
    return sample, noted.beside(autocast(sample, FromNative(subject))) if judged else noted


def _of_guesses(result: CheckResult) -> CheckResult:
    """The same where the inputs were inferred: what a guess may have made is asked for in float64 alone."""
    doubt = ["that such inputs are valid, which have no float64 path to be looked at more closely,"]
    findings = tuple(invented(f, doubt) if f.severity is Severity.ERROR else f for f in result.findings)
    outcome = Outcome.INCONCLUSIVE if result.outcome is Outcome.FAILED else result.outcome
    return replace(result, findings=findings, outcome=outcome)


def _native(result: CheckResult, why: str) -> CheckResult:
    """Mark what was judged natively alone; what was not is inconclusive."""
    rows = result.swept.precision
    judged = bool(rows) and all(row.closeness is not Closeness.UNKNOWN for row in rows)
    if not judged and result.outcome in {Outcome.PASSED, Outcome.NOT_RUN}:
        return replace(result, outcome=Outcome.INCONCLUSIVE)
    return replace(result, swept=replace(result.swept, native=why)) if judged else result


def _alone(sample: Sample, dtype: str) -> tuple[list[Finding], list[Precision]]:
    """One dtype by a composite; by finite differences where there is none."""
    truth = FromNative(sample.subject)
    found, rows = in_dtype(sample, truth, dtype, asked=dtype in sample.subject.dtypes)
    if any(row.value for row in rows):
        if any(row.closeness is Closeness.UNKNOWN for row in rows):
            unsure = _not_judged(sample, dtype, "rounding could not be measured")
            found = [*(f for f in found if f.code != "GV109"), unsure]
        return found, rows
    place = Place.typical(sample, truth, plainly(dtype), asked=True)
    call = place.call()
    reason = rows[0].reason if rows else "it refuses that dtype"
    if not isinstance(call, NativeCall):
        return [_not_judged(sample, dtype, reason)], rows
    nonlinear = _nonlinearity(place, call)
    if nonlinear is not None:
        return [nonlinear], [Precision(dtype, "", Closeness.WRONG)]
    if dtype != "float32":
        return _against_float32(place, reason)
    slope = _slope(call)
    if slope is None:
        return [_not_judged(sample, dtype, reason)], rows
    return _of_slope(place, slope)


def _against_float32(place: Place, reason: str) -> tuple[list[Finding], list[Precision]]:
    """16 bits against the target's own float32, once the slope of that is right."""
    sample, dtype = place.sample, place.arithmetic.name
    single = replace(place, arithmetic=plainly("float32"))
    call = single.call()
    slope = _slope(call) if isinstance(call, NativeCall) else None
    if slope is None:
        return [_not_judged(sample, dtype, reason)], []
    if slope.is_wrong:
        return _of_slope(single, slope)
    found, rows = in_dtype(sample, OwnFloat32(), dtype, asked=True)
    if not any(row.value for row in rows) or any(row.closeness is Closeness.UNKNOWN for row in rows):
        return [*found, _not_judged(sample, dtype, reason)], rows
    known = [
        replace(row, hides=max(row.hides or 0.0, slope.hides), reason=f"against {OWN_FLOAT32}")
        for row in rows
    ]
    hidden = max((row.hides or 0.0 for row in known), default=0.0)
    note = sample.finding(
        "GV601",
        f"no float64 path and no composite: {dtype} was held against {OWN_FLOAT32}, whose slope along the "
        f"gradient is right; an error of {number(hidden)} of a gradient could hide, and a wrong formula that "
        f"changes {number(slope.hides)} of the slope at most",
        hint="A `reference:` of plain torch operations would show single entries.",
        severity=Severity.NOTE,
    )
    return [*found, note], known


def _of_slope(place: Place, slope: AlongGradient) -> tuple[list[Finding], list[Precision]]:
    sample, dtype = place.sample, place.arithmetic.name
    if slope.is_wrong:
        again = place.elsewhere().call()
        repeated = _slope(again) if isinstance(again, NativeCall) else None
        if repeated is None or not repeated.is_wrong:
            return [_not_judged(sample, dtype, "a difference that was measured did not repeat itself")], []
        finding = sample.finding(
            "GV601",
            f"along the gradient that backward gives in {dtype}, forward has the slope "
            f"{number(slope.measured)}, which is known to ±{number(slope.allowed)}; backward claims "
            f"{number(slope.claimed)}",
            hint="There is no float64 path and no composite. A `reference:` of plain torch operations would "
            "say which entries are wrong.",
        )
        return [finding], [Precision(dtype, "", Closeness.WRONG)]
    how = "finite differences along the gradient"
    row = Precision(dtype, "all gradients together", Closeness.COARSE, hides=slope.hides, reason=how)
    note = sample.finding(
        "GV601",
        f"no float64 path and no composite: checked by {how} in {dtype}, which sees errors above "
        f"{number(slope.hides)} of the whole gradient, not single entries",
        hint="A `reference:` of plain torch operations would show single entries.",
        severity=Severity.NOTE,
    )
    return [note], [row]


def _slope(call: NativeCall) -> AlongGradient | None:
    """Forward's slope along the gradient, by native steps; of complex inputs both parts move."""
    problem = call.problem
    outputs = len(problem.output_positions)
    parts = [torch.view_as_real(p.resolve_conj()) if p.is_complex() else p for p in problem.primals]

    def weighed(moved: Sequence[Tensor]) -> Tensor | None:
        whole = zip(moved, problem.primals, strict=True)
        result = problem.evaluate(
            [torch.view_as_complex(m.contiguous()) if p.is_complex() else m for m, p in whole]
        )
        if isinstance(result, Raised):
            return None
        products = [
            (torch.view_as_real(u * y.conj())[..., 0] if y.is_complex() else u.double() * y.double()).sum()
            for u, y in zip(call.cotangents, result.value, strict=True)
        ]
        return torch.stack([p.double() for p in products]).sum()

    return along_gradient(weighed, parts, call.got[outputs:])


def _nonlinearity(place: Place, call: NativeCall) -> Finding | None:
    """GV106, where a grad_output times a power of two does not give the gradient times it."""
    short = call.values[0].form.largest < LINEAR**4  # float16 overflows soon
    factor = 4.0 if short else LINEAR
    scaled = values_at(call.problem, call.problem.primals, [u * factor for u in call.cotangents])
    if isinstance(scaled, Raised):
        return None
    for value, got, more in zip(call.values, call.got, scaled, strict=True):
        if value.output is not None or not got.numel():
            continue
        error = (more / factor - got).abs().max().item()
        allowed = EXACT * value.form.unit * got.abs().max().item() + value.form.tiny
        if not error <= allowed:
            return place.sample.finding(
                "GV106",
                f"{place.arithmetic.said}, {number(factor)} times the grad_output does not give "
                f"{number(factor)} times the gradient with respect to `{value.input}`: "
                f"it is {number(error)} off",
                hint="Something inside loses digits or clips: a cast to a shorter dtype, a clamp, a sign.",
                input=value.input,
            )
    return None


def _not_judged(sample: Sample, dtype: str, reason: str) -> Finding:
    return sample.finding(
        "GV109",
        f"there is no float64 path, and {dtype} could not be judged: {reason}",
        hint="Name a composite of plain torch operations as `reference:`; it runs in float64.",
    )
