"""In which precision a target is judged, and one without a float64 path, in its native dtypes alone.

It is decided once for each combination of its options, before any check. Only the declared cases count, the
smallest and the largest of a combination, whatever is selected and in whatever order. Counts of calls and of
digits decide, and no clock: another machine decides the same.

Without a float64 path it is held against a composite in float64: the reference, or the operations that
forward ran. With neither, the slope along the gradient is measured in float32, and the report says how large
an error could hide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradverify.model import (
    Case,
    Closeness,
    Effort,
    Finding,
    Outcome,
    Point,
    Precision,
    Severity,
    Swept,
    tensors_of,
)
from gradverify.model.case import is_declared, is_of_decades, points_of
from gradverify.verifier.checks.first_order import backward_raised, not_taken
from gradverify.verifier.checks.float32_inside import every_output_is_float32, tells_digits
from gradverify.verifier.checks.kept import judged_jacobians
from gradverify.verifier.checks.precision.findings import in_dtype, together
from gradverify.verifier.checks.precision.judging import OF_A_GRADIENT, OF_AN_OUTPUT, OWN_FLOAT32
from gradverify.verifier.checks.precision.kinks import half_the_digits
from gradverify.verifier.checks.precision.native import NativeCall, plainly, values_of
from gradverify.verifier.checks.precision.truth import FromNative, OwnFloat32, Place, agree, exact_problem
from gradverify.verifier.checks.precision.value_ranges import room_around
from gradverify.verifier.checks.result import CheckResult
from gradverify.verifier.checks.samples import prepare
from gradverify.verifier.checks.structured_grad_outputs import NotTaken, wrong_with_structure
from gradverify.verifier.checks.subject import (
    Float64,
    Native,
    NoSample,
    Sample,
    Subject,
    called_with,
    first_line,
)
from gradverify.verifier.checks.wording import blocks, describe_block, invented, number
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.native_values import NATIVE, drawn_value, native_arguments
from gradverify.verifier.interpreter.launches import launches, programs, watch_kernels
from gradverify.verifier.numerics.calling import returned_tensors
from gradverify.verifier.numerics.native_rounding import AlongGradient, Weighed, along_gradient
from gradverify.verifier.numerics.probes import random_signs
from gradverify.verifier.numerics.tracing import short_format
from gradverify.verifier.numerics.verdict import Judged

ORDER = ("float32", "bfloat16", "float16")
"""What a target without a float64 path is tried in, where no dtype is listed."""

FLOAT32_INSIDE = "forward has no more digits than float32"
WRONG_IN_FLOAT64 = "in float64 its kernels give other values than in their own dtypes"
NOT_TO_ALL_DIGITS = "its kernels do not give the reference's values to all digits of float64"


ALL_DIGITS = 1e-9
"""Relative: float32 inside is 1e-8 off at the least."""

STAIRS = "forward moves in steps, flat between them, so that its operations have no derivative"

MOVED = 2.0**-6
"""Share by which inputs are moved to see whether values of a staircase move."""

MANY_PROGRAMS = 64
"""Programs of interpreted kernels in one forward from which on the sweep is brief: each takes some 2 ms, and
a sweep makes hundreds of calls."""

COTANGENT_SEED = 61
"""Added to a case's seed for the grad_outputs of these calls; any other would do."""

Build = Callable[[Case], tuple[Subject, Case] | Finding]
"""A case to the subject that it is verified with, in float64."""


def deciding_cases(options: object, cases: Sequence[Case]) -> tuple[Case, ...]:
    """The declared cases by which one combination of options is decided: the smallest and the largest.

    It is native if one of them says so: a kernel may take over from some size on.
    """
    own = sorted((c for c in cases if c.options == options), key=lambda c: (_entries(c), c.id))
    return tuple(dict.fromkeys([*own[:1], *own[-1:]]))


def precision_at(case: Case, build: Build) -> Float64 | Native:
    """What one of these cases says."""
    built = build(case)
    return Float64() if isinstance(built, Finding) else _at(*built)


def native_dtype(subject: Subject, case: Case) -> str:
    """The first dtype, of the listed ones if any are, in which forward runs; empty where it runs in none."""
    for dtype in listed_dtypes(subject) or ORDER:
        sample = prepare(replace(subject, precision=Native(dtype, "")), case, Point.TYPICAL, 0)
        if isinstance(sample, Sample) and sample.is_native:
            return dtype
    return ""


def listed_dtypes(subject: Subject) -> tuple[str, ...]:
    """The native dtypes that the command line or the spec lists."""
    return tuple(d for d in subject.dtypes if d in NATIVE)


def _entries(case: Case) -> int:
    return sum(math.prod(t.shape) for an_input in case.inputs for t in tensors_of(an_input))


def _at(subject: Subject, case: Case) -> Float64 | Native:
    if subject.surrogate is not None:
        return _unless_refused(subject, case)
    watch_kernels()
    ran = launches()
    sample = _telling(subject, case)
    why = _why_native(sample, kernels=launches() > ran)
    before = programs()
    dtype = native_dtype(subject, case) if why else ""
    if not dtype:
        return Float64()
    many = programs() - before >= MANY_PROGRAMS
    return Native(dtype, why, brief=many and subject.settings.effort is not Effort.THOROUGH)


def _unless_refused(subject: Subject, case: Case) -> Float64 | Native:
    """Float64, where forward takes it: steps and rounded values do not tell in what they are computed."""
    sample = prepare(subject, case, Point.TYPICAL, 0)
    why = _why_native(sample, kernels=False) if isinstance(sample, NoSample) else ""
    dtype = native_dtype(subject, case) if why else ""
    return Native(dtype, why) if dtype else Float64()


def with_what_is_meant(subject: Subject) -> Subject:
    """Without a float64 path: the reference has forward's own values and the surrogate's gradient.

    As it is where the surrogate covers some of the inputs alone, or only gives its reason.
    """
    meant = subject.surrogate
    names = [p.name for p in subject.target.parameters]
    if not subject.native or meant is None or meant.function is None or meant.inputs:
        return subject
    if not set(meant.arguments) <= {*names}:
        return subject
    surrogate, target, dtype = meant.function, subject.function, NATIVE[subject.native]
    if meant.arguments:
        surrogate = called_with(surrogate, [names.index(name) for name in meant.arguments])

    def reference(*arguments: Any) -> tuple[Any, ...]:  # noqa: ANN401 - user code's arguments and result
        with torch.no_grad():
            own = returned_tensors(target(*(_in_dtype(a, dtype) for a in arguments)))
        given = returned_tensors(surrogate(*arguments))
        return tuple(g + (v.to(g.dtype) - g).detach() for g, v in zip(given, own, strict=True))

    return replace(subject, reference=reference, reference_arguments=())


def _in_dtype(argument: Any, dtype: torch.dtype) -> Any:  # noqa: ANN401 - any argument
    is_wide = isinstance(argument, Tensor) and argument.dtype is torch.float64
    return argument.to(dtype) if is_wide else argument


def _telling(subject: Subject, case: Case) -> Sample | NoSample:
    """The first declared point where the digits of every output say something; the first one if none does.

    Where a threshold makes zeros of all values, nothing is known of how they are computed.
    """
    first = prepare(subject, case, Point.TYPICAL, 0)
    if isinstance(first, NoSample) or tells_digits(first):
        return first
    for point, draw in points_of(case, subject.settings.effort):
        declared = is_declared(point, draw) and not is_of_decades(point, draw)  # few digits end there
        if declared and (point, draw) != (Point.TYPICAL, 0):
            sample = prepare(subject, case, point, draw)
            if isinstance(sample, Sample) and tells_digits(sample):
                return sample
    return first


def _why_native(sample: Sample | NoSample, *, kernels: bool) -> str:
    """Why there is no float64 path; empty where there is one."""
    if isinstance(sample, NoSample):
        raised = sample.raised
        return "" if raised is None else f"forward raises {raised.type}: {first_line(raised.message)}"
    if kernels and sample.subject.reference is not None:
        return _unlike_the_reference(sample)
    if every_output_is_float32(sample, kernels=kernels):
        return FLOAT32_INSIDE if kernels else ""
    return WRONG_IN_FLOAT64 if kernels and _unlike_their_own_dtype(sample) else ""


def _unlike_the_reference(sample: Sample) -> str:
    """Why a call in float64 does not give what the reference gives; empty where it does."""
    problem = sample.problem
    reference = sample.subject.reference_by_name([a.name for a in problem.arguments])
    if reference is None:
        return ""
    u = problem.outputs.unflatten(random_signs(problem.outputs.size, sample.case.seed + COTANGENT_SEED))
    mine, theirs = values_of(problem, u), values_of(replace(problem, function=reference), u)
    if isinstance(mine, Raised):
        return f"backward raises {mine.error.type} in float64"
    if isinstance(theirs, Raised) or len(mine) != len(theirs):
        return ""
    return "" if agree(mine, theirs, ALL_DIGITS) else NOT_TO_ALL_DIGITS


def _unlike_their_own_dtype(sample: Sample) -> bool:
    """Whether kernels give other values in float64 than in a dtype that they run in, by half of its digits.

    They may never have run in float64: pointers of it do not go with constants and atomic additions of
    float32.
    """
    problem = sample.problem
    signs = random_signs(problem.outputs.size, sample.case.seed + COTANGENT_SEED)
    dtype = native_dtype(sample.subject, sample.case)
    pair = native_arguments(problem.arguments, dtype, drawn_value) if dtype else None
    if pair is None:
        return False
    native, exact = (replace(problem, arguments=arguments) for arguments in pair)
    u = problem.outputs.unflatten(signs)
    own, wide = values_of(native, u), values_of(exact, u)
    if isinstance(own, Raised) or isinstance(wide, Raised):
        return isinstance(wide, Raised) and not isinstance(own, Raised)
    return not agree(own, wide, float(torch.finfo(NATIVE[dtype]).eps) ** 0.5)


def located(sample: Sample, findings: Sequence[Finding]) -> list[Finding]:
    """The findings of a native sample, grossly wrong gradients with their place in the Jacobian.

    Where forward already gives other values than the reference, its gradients say nothing.
    """
    if any(f.code == OF_AN_OUTPUT for f in findings):
        return [f for f in findings if f.code not in OF_A_GRADIENT or f.severity is not Severity.ERROR]
    wrong = {f.input for f in findings if f.code in OF_A_GRADIENT and f.severity is Severity.ERROR}
    judged = judged_jacobians(sample, sample.problem) if wrong else None
    if not isinstance(judged, Judged):
        return list(findings)
    names, positions = sample.problem.input_names, sample.problem.output_positions
    found = [
        describe_block(sample, judged.comparison, positions[o], output, names[i], source)
        for o, output, i, source in blocks(judged.outputs, judged.inputs)
        if names[i] in wrong
    ]
    placed = [_beside_composite(f) for f in found if f is not None and f.severity is Severity.ERROR]
    reported = {f.input for f in placed}
    return [*placed, *(f for f in findings if f.code not in OF_A_GRADIENT or f.input not in reported)]


def _beside_composite(finding: Finding) -> Finding:
    entries = finding.entries
    return (
        finding if entries is None else replace(finding, entries=replace(entries, compared_with="reference"))
    )


NAME_A_REFERENCE = "Name a `reference:` of plain torch operations: it runs in float64, and shows every entry."

ON_PURPOSE = "its gradient is deliberately not the derivative"
"""Why nothing is held against a slope of forward."""

NAME_A_SURROGATE = (
    "Name a function of plain torch operations whose gradient is meant for every input, as `surrogate: "
    "module:function`; it runs in float64."
)

WHICH_ENTRIES = (
    "There is no float64 path and no composite. A `reference:` of plain torch operations would say which "
    "entries are wrong."
)
"""The hint of a slope that is wrong."""


def judged_alone(sample: Sample, *, in_full: bool = False) -> CheckResult:
    """A target without a float64 path, in its listed dtypes, else in the one it is called in.

    `in_full`: at all values that the spec declares, and for grad_outputs of a certain structure.
    """
    subject = sample.subject
    if subject.surrogate is not None and subject.reference is None:
        unknown = replace(_not_judged(sample, subject.native, ON_PURPOSE), hint=NAME_A_SURROGATE)
        return CheckResult((unknown,), Outcome.INCONCLUSIVE)
    if sample.point is Point.TYPICAL and sample.draw == 0:
        dtypes = listed_dtypes(subject) or (subject.native,)
    else:
        dtypes = (subject.native,)
    results = [_alone(sample, dtype, in_full=in_full) for dtype in dtypes]
    wrong = any(f.severity is Severity.ERROR for found, _ in results for f in found)
    if wrong and subject.reference is None and _is_a_staircase(sample):
        results = [([_not_judged(sample, dtypes[0], STAIRS)], [])]
    placed = [(located(sample, found), rows) for found, rows in results]
    short = short_format(sample.problem) if wrong and subject.reference is None else ""
    if short and getattr(torch, short).is_floating_point:
        placed = [([_unless_rounded(sample, f, short) for f in found], rows) for found, rows in placed]
    result = _native(together(placed), subject.why_native)
    if subject.surrogate is not None:
        of_it = (replace(f, code="GV302") if f.code == "GV101" else f for f in result.findings)
        result = replace(result, findings=tuple(of_it))
    result = _linear(sample, result) if in_full else result
    return _of_guesses(result) if subject.inferred else result


def _linear(sample: Sample, result: CheckResult) -> CheckResult:
    """The result with what is wrong for grad_outputs that a loss sends, as it is asked for in float64."""
    wrong = None if result.outcome is Outcome.FAILED else wrong_with_structure(sample)
    if wrong is None:
        return result
    if isinstance(wrong, NotTaken):
        wrong = not_taken(sample, wrong)
    if wrong.severity is not Severity.ERROR:
        return replace(result, findings=(*result.findings, wrong))
    rows = (Precision(sample.subject.native, "", Closeness.WRONG),)
    return result.beside(CheckResult((wrong,), Outcome.FAILED, swept=Swept(precision=rows)))


def no_float64_path(sample: Sample) -> Finding:
    """The note that says so."""
    return sample.finding(
        "GV104",
        f"there is no float64 path: {sample.subject.why_native}",
        hint="It was judged in native dtypes alone, which hide more than float64 does.",
        severity=Severity.NOTE,
    )


def _of_guesses(result: CheckResult) -> CheckResult:
    """The same where the inputs were inferred: what a guess may have made is asked for in float64 alone."""
    doubt = ["that such inputs are valid (there is no float64 path to look more closely)"]
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


def _alone(sample: Sample, dtype: str, *, in_full: bool) -> tuple[list[Finding], list[Precision]]:
    """One dtype by a composite; by finite differences where there is none."""
    beside = is_declared(sample.point, sample.draw) and sample.point is not Point.TYPICAL
    truth = FromNative(sample.subject, case=sample.case if beside else None)
    asked = dtype in sample.subject.dtypes
    found, rows = in_dtype(sample, truth, dtype, asked=asked, in_full=in_full)
    if any(row.value for row in rows):
        if any(row.closeness is Closeness.UNKNOWN for row in rows):
            unsure = _not_judged(sample, dtype, "rounding could not be measured")
            found = [*(f for f in found if f.code != "GV109"), unsure]
        return found, rows
    if not is_declared(sample.point, sample.draw) or is_of_decades(sample.point, sample.draw):
        return [], rows  # a slope in float32 has too few digits at undeclared values, and at small ones
    place = Place.typical(sample, truth, plainly(dtype), asked=True)
    call = place.call()
    reason = rows[0].reason if rows else "it refuses that dtype"
    if isinstance(call, NativeCall):
        if sample.subject.surrogate is None:
            return _without_composite(place, call, reason, rows)
        return [replace(_not_judged(sample, dtype, reason), hint=NAME_A_SURROGATE)], rows
    if call.in_backward and call.error is not None and dtype == sample.subject.native:
        return [backward_raised(sample, call.error, f" in {dtype}")], []
    return [_not_judged(sample, dtype, reason)], rows


def _is_a_staircase(sample: Sample) -> bool:
    """Whether forward, as torch differentiates it, has no slope anywhere, although its values move.

    What is found by comparisons, as by bisection, moves in steps that may be as fine as rounding. No
    derivative is to be had of them, and backward may well have that of what they lead to.
    """
    exact = exact_problem(sample)
    values = None if exact is None else exact.evaluate(exact.primals)
    if exact is None or values is None or isinstance(values, Raised):
        return False
    u = exact.outputs.unflatten(random_signs(exact.outputs.size, sample.case.seed + COTANGENT_SEED))
    slope = exact.pull_back(exact.primals, u)
    moved = exact.evaluate([p * (1 + MOVED) for p in exact.primals])
    if isinstance(slope, Raised) or isinstance(moved, Raised):
        return False
    flat = all(g is None or not g.any() for g in slope.value)
    return flat and not all(map(torch.equal, values.value, moved.value))


def _unless_rounded(sample: Sample, finding: Finding, short: str) -> Finding:
    """The finding; inconclusive where forward rounds to fewer digits inside than its error takes."""
    entries = finding.entries
    if finding.code not in OF_A_GRADIENT or finding.severity is not Severity.ERROR or entries is None:
        return finding
    off = max((abs(e.actual - e.expected) for e in entries.worst), default=math.inf)
    size = max((abs(e.expected) for e in entries.worst), default=0.0)
    if off > half_the_digits(sample.problem) * size:
        return finding
    return _not_judged(
        sample, sample.subject.native, f"forward rounds to {short} inside, and so may its slope"
    )


def _without_composite(
    place: Place, call: NativeCall, reason: str, rows: list[Precision]
) -> tuple[list[Finding], list[Precision]]:
    """One dtype by what the target gives for other grad_outputs, and beside its own inputs."""
    sample, dtype = place.sample, place.arithmetic.name
    if dtype != "float32":
        return _against_float32(place, reason)
    slope = _slope(place, call)
    if slope is None:
        return [_not_judged(sample, dtype, reason)], rows
    # What is a multiple of the gradient is off along it, too, and leaves nothing out.
    left_out = None if slope.is_wrong else _left_out(place, call)
    if left_out is not None:
        return [left_out], [Precision(dtype, "", Closeness.WRONG)]
    return _of_slope(place, slope)


def _against_float32(place: Place, reason: str) -> tuple[list[Finding], list[Precision]]:
    """16 bits against the target's own float32, once the slope of that is right."""
    sample, dtype = place.sample, place.arithmetic.name
    single = replace(place, arithmetic=plainly("float32"))
    call = single.call()
    slope = _slope(single, call) if isinstance(call, NativeCall) else None
    if slope is None:
        return [_not_judged(sample, dtype, reason)], []
    if not slope.is_right:
        return _of_slope(single, slope)
    found, rows = in_dtype(sample, OwnFloat32(), dtype, asked=True)
    if not any(row.value for row in rows) or any(row.closeness is Closeness.UNKNOWN for row in rows):
        return [*found, _not_judged(sample, dtype, reason)], rows
    known = [
        replace(row, hides=max(row.hides or 0.0, slope.hides), reason=f"against {OWN_FLOAT32}")
        for row in rows
    ]
    hidden = max((row.hides or 0.0 for row in known), default=0.0)
    open_still = sample.finding(
        "GV109",
        f"no float64 path and no composite: {dtype} was held against {OWN_FLOAT32}, whose slope along the "
        f"gradient is right; an error of {number(hidden)} of a gradient could hide, and a wrong formula that "
        f"changes {number(slope.hides)} of the slope at most",
        hint=NAME_A_REFERENCE,
    )
    return [*found, open_still], known


def _of_slope(place: Place, slope: AlongGradient) -> tuple[list[Finding], list[Precision]]:
    """What a slope in float32 says: it refutes at declared typical values alone."""
    sample, dtype = place.sample, place.arithmetic.name
    if slope.is_wrong and sample.point is Point.TYPICAL:
        again = place.elsewhere().call()
        repeated = _slope(place, again) if isinstance(again, NativeCall) else None
        if repeated is None or not repeated.is_wrong:
            return [_not_judged(sample, dtype, "a measured difference did not recur")], []
        finding = sample.finding(
            "GV101",
            f"along the gradient that backward gives in {dtype}, forward has the slope "
            f"{number(slope.measured)}, which is known to ±{number(slope.allowed)}; backward claims "
            f"{number(slope.claimed)}",
            hint=WHICH_ENTRIES,
        )
        return [finding], [Precision(dtype, "", Closeness.WRONG)]
    if not slope.is_right:
        return [_not_judged(sample, dtype, f"there is no composite, and {_unknown(slope)}")], []
    how = "finite differences along the gradient"
    row = Precision(dtype, "all gradients together", Closeness.COARSE, hides=slope.hides, reason=how)
    open_still = sample.finding(
        "GV109",
        f"no float64 path and no composite: {how} in {dtype} agree with it here, and would have shown an "
        f"error above {number(slope.hides)} of the whole gradient; a single wrong entry could hide",
        hint=NAME_A_REFERENCE,
    )
    return [open_still], [row]


def _left_out(place: Place, call: NativeCall) -> Finding | None:
    """GV101, where forward moves along what backward says does nearly nothing: at declared typical values."""
    if place.sample.point is not Point.TYPICAL:
        return None
    slope = _slope(place, call, faint=True)
    if slope is None or not slope.is_wrong:
        return None
    again = place.elsewhere().call()
    repeated = _slope(place, again, faint=True) if isinstance(again, NativeCall) else None
    if repeated is None or not repeated.is_wrong:
        return None
    return place.sample.finding(
        "GV101",
        f"where the gradient that backward gives in {place.arithmetic.name} is nearly zero, forward has the "
        f"slope {number(slope.measured)}, which is known to ±{number(slope.allowed)}; backward claims "
        f"{number(slope.claimed)}",
        hint=f"Backward leaves entries out. {WHICH_ENTRIES}",
    )


def _unknown(slope: AlongGradient) -> str:
    """Why a slope that is not the claimed one refutes nothing."""
    claimed, measured = number(slope.claimed), number(slope.measured)
    if not slope.is_known:
        return f"forward's slope along the gradient cannot be measured ({measured} ± {number(slope.allowed)})"
    said = f"forward's slope along the gradient is {measured} where backward claims {claimed}"
    why = "at values that are not typical ones" if slope.smooth else "with a kink near by"
    return f"{said}, {why}"


def _slope(place: Place, call: NativeCall, *, faint: bool = False) -> AlongGradient | None:
    """Forward's slope along the gradient, by native steps; of complex inputs both parts move."""
    problem = call.problem
    outputs = len(problem.output_positions)
    parts = [torch.view_as_real(p.resolve_conj()) if p.is_complex() else p for p in problem.primals]

    def weighed(moved: Sequence[Tensor]) -> Weighed | None:
        whole = zip(moved, problem.primals, strict=True)
        result = problem.evaluate(
            [torch.view_as_complex(m.contiguous()) if p.is_complex() else m for m, p in whole]
        )
        if isinstance(result, Raised):
            return None
        total = torch.zeros((), dtype=torch.float64)
        rounding = torch.zeros((), dtype=torch.float64)
        for u, y in zip(call.cotangents, result.value, strict=True):
            product = (u * y.conj()).to(torch.complex128).real if y.is_complex() else u.double() * y.double()
            total = total + product.sum().cpu()
            rounding = rounding + torch.finfo(y.dtype).eps * product.abs().sum().cpu()
        return Weighed(total, rounding)

    gradients = [g.to(p.device) for p, g in zip(parts, call.got[outputs:], strict=True)]
    rooms = room_around(place.sample.case, problem.arguments)
    rooms = [r[..., None] if p.is_complex() else r for r, p in zip(rooms, problem.primals, strict=True)]
    return along_gradient(weighed, parts, gradients, rooms, faint=faint)


def _not_judged(sample: Sample, dtype: str, reason: str) -> Finding:
    return sample.finding(
        "GV109",
        f"there is no float64 path, and {dtype} could not be judged: {reason}",
        hint="Name a composite of plain torch operations as `reference:`; it runs in float64.",
    )
