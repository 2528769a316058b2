"""In which precision a target is judged: decided once for each combination of its options, before any check.

Only the declared cases count, the smallest and the largest of a combination, whatever is selected and in
whatever order. Counts of calls and of digits decide, and no clock: another machine decides the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from gradverify.model import Case, Effort, Finding, Point, Severity, tensors_of
from gradverify.model.points import is_declared, points_of
from gradverify.verifier.checks.first_order import first_order
from gradverify.verifier.checks.float32_inside import every_output_is_float32, tells_digits
from gradverify.verifier.checks.precision.native import values_of
from gradverify.verifier.checks.precision.truth import agree
from gradverify.verifier.checks.random_signs import random_signs
from gradverify.verifier.checks.samples import prepare
from gradverify.verifier.checks.subject import Float64, Native, NoSample, Sample, Subject, first_line
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.native_values import NATIVE, drawn_value, native_arguments
from gradverify.verifier.interpreter.launches import launches, programs, watch_kernels

ORDER = ("float32", "bfloat16", "float16")
"""What a target without a float64 path is tried in, where no dtype is listed."""

FLOAT32_INSIDE = "forward computes in float32 inside"
WRONG_IN_FLOAT64 = "in float64 its kernels give other values than in their own dtypes"
NOT_TO_ALL_DIGITS = "its kernels do not give the reference's values to all digits of float64"

OF_FLOAT32 = frozenset({"GV104", "GV110"})
"""Codes that say no more than that something is computed in float32."""

ALL_DIGITS = 1e-9
"""Relative: float32 inside is 1e-8 off at the least."""

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
        return Float64()
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


def _telling(subject: Subject, case: Case) -> Sample | NoSample:
    """The first declared point where the digits of every output say something; the first one if none does.

    Where a threshold makes zeros of all values, nothing is known of how they are computed.
    """
    first = prepare(subject, case, Point.TYPICAL, 0)
    if isinstance(first, NoSample) or tells_digits(first):
        return first
    for point, draw in points_of(case, subject.settings.effort):
        if is_declared(point, draw) and (point, draw) != (Point.TYPICAL, 0):
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
        return FLOAT32_INSIDE if kernels or not _is_wrong_in_float64(sample) else ""
    return WRONG_IN_FLOAT64 if kernels and _unlike_their_own_dtype(sample) else ""


def _is_wrong_in_float64(sample: Sample) -> bool:
    """Whether float64 alone shows a mistake: it is a large one then, and entries say more than rounding."""
    if sample.subject.reader is not None:
        sample.subject.reader.reset()
    found = first_order(sample).result.findings
    return any(f.severity is Severity.ERROR and f.code not in OF_FLOAT32 for f in found)


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
