"""In which precision a target is judged: float64, or its native dtype where it has no float64 path.

It is decided once for each combination of its options, before any check. Only the declared cases count, the
smallest and the largest of a combination, whatever is selected and in whatever order. Counts of calls and of
digits decide, and no clock: another machine decides the same. Whether operations of torch compute in float32
inside is seen as they run, and decides nothing here; what kernels do is not seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradverify.model import Case, Effort, Finding, Point
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.native_values import NATIVE
from gradverify.verifier.interpreter.launches import launches, programs, watch_kernels
from gradverify.verifier.questions.dtypes.calls import NoCall, Truth, native_call, plainly, values_of
from gradverify.verifier.questions.subject import (
    Float64,
    Native,
    NoSample,
    Sample,
    Subject,
    first_line,
    places_of,
    prepare,
    tensors_in,
)
from gradverify.verifier.witnesses.rounding import has_digits_of_float32
from gradverify.verifier.witnesses.values import probe

ORDER = ("float32", "bfloat16", "float16")
"""What a target without a float64 path is tried in, where no dtype is listed."""

FLOAT32_INSIDE = "forward has no more digits than float32"
WRONG_IN_FLOAT64 = "in float64 its kernels give other values than in their own dtypes"
NOT_TO_ALL_DIGITS = "its kernels do not give the reference's values to all digits of float64"

ALL_DIGITS = 1e-9
"""Relative: float32 inside is 1e-8 off at the least."""

MANY_PROGRAMS = 64
"""Programs of interpreted kernels in one forward from which on the sweep is brief: each takes some 2 ms, and
a sweep makes hundreds of calls."""

Build = Callable[[Case], tuple[Subject, Case] | Finding]
"""A case to the subject that it is verified with, in float64."""


def deciding_cases(options: object, cases: Sequence[Case]) -> tuple[Case, ...]:
    """The declared cases by which one combination of options is decided: the smallest and the largest.

    It is native if one of them says so: a kernel may take over from some size on.
    """

    def size(case: Case) -> tuple[int, str]:
        return sum(math.prod(t.shape) for t in tensors_in(case)), case.id

    own = sorted((c for c in cases if c.options == options), key=size)
    return tuple(dict.fromkeys([*own[:1], *own[-1:]]))


def precision_at(case: Case, build: Build) -> Float64 | Native:
    """What one of these cases says."""
    built = build(case)
    if isinstance(built, Finding):
        return Float64()
    subject, case = built
    watch_kernels()
    ran = launches()
    sample = prepare(subject, case, Point.TYPICAL, 0)
    why = _why_native(sample, kernels=launches() > ran and subject.surrogate is None)
    before = programs()
    dtype = native_dtype(subject, case) if why else ""
    if not dtype:
        return Float64()
    many = programs() - before >= MANY_PROGRAMS
    return Native(dtype, why, brief=many and subject.settings.effort is not Effort.THOROUGH)


def native_dtype(subject: Subject, case: Case) -> str:
    """The first dtype, of the listed ones if any are, in which forward runs; empty where it runs in none."""
    for dtype in tuple(d for d in subject.dtypes if d in NATIVE) or ORDER:
        sample = prepare(replace(subject, precision=Native(dtype, "")), case, Point.TYPICAL, 0)
        if isinstance(sample, Sample) and sample.is_native:
            return dtype
    return ""


def _why_native(sample: Sample | NoSample, *, kernels: bool) -> str:
    """Why there is no float64 path; empty where there is one."""
    if isinstance(sample, NoSample):
        raised = sample.raised
        return "" if raised is None else f"forward raises {raised.type}: {first_line(raised.message)}"
    return _of_kernels(sample) if kernels else ""


def _of_kernels(sample: Sample) -> str:
    """The same of kernels: their reference in float64 decides, else their digits and their own dtype."""
    problem = sample.problem
    u = problem.outputs.unflatten(probe(problem.outputs.size, sample.key))
    reference = sample.subject.reference_by_name(places_of(problem.arguments))
    own = values_of(problem, u)
    if reference is not None:
        if isinstance(own, Raised):
            return f"backward raises {own.error.type} in float64"
        theirs = values_of(replace(problem, function=reference), u)
        if isinstance(theirs, Raised) or len(own) != len(theirs):
            return ""
        return "" if agree(own, theirs, ALL_DIGITS) else NOT_TO_ALL_DIGITS
    if not isinstance(own, Raised) and has_digits_of_float32(torch.cat([t.reshape(-1) for t in own])):
        return FLOAT32_INSIDE
    return WRONG_IN_FLOAT64 if _unlike_their_own_dtype(sample) else ""


def _unlike_their_own_dtype(sample: Sample) -> bool:
    """Whether kernels give other values in float64 than in a dtype that they run in, by half of its digits.

    They may never have run in float64: pointers of it do not go with constants and atomic additions of
    float32.
    """
    dtype = native_dtype(sample.subject, sample.case)
    if not dtype:
        return False
    call = native_call(sample.problem, sample.problem.arguments, plainly(dtype), sample.key)
    if isinstance(call, NoCall):
        return False
    wide = Truth.of(call.exact, call)
    return isinstance(wide, Raised) or not agree(call.got, wide.values, 2 * call.form.unit**0.5)


def agree(mine: Sequence[Tensor], theirs: Sequence[Tensor], within: float) -> bool:
    """Whether two computations give the same values, relative to an entry and its typical value."""
    for a, b in zip(mine, theirs, strict=True):
        if a.shape != b.shape:
            return False
        size = a.abs() + a.square().mean().sqrt() if a.numel() else a
        if not (((a - b).abs() <= within * size) | (a == b) | (a.isnan() & b.isnan())).all():
            return False
    return True
