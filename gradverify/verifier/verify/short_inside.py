"""A target that computes in 16 or 8 bits inside: its formula in float64, then its rounding.

Seen by the dtypes of its operations, and asked for only where something would be reported: no mode runs
around a target that is right without one.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from gradverify.model import Engine, Finding, Outcome, Severity
from gradverify.rules import Family
from gradverify.verifier.questions.findings import CheckResult
from gradverify.verifier.questions.subject import Sample, prepare
from gradverify.verifier.questions.witnessing import witnesses_of
from gradverify.verifier.verify.table import Results, ask
from gradverify.verifier.witnesses.rounding import SIXTEEN_BITS

OPEN = frozenset({Outcome.FAILED, Outcome.INCONCLUSIVE})
"""Outcomes that rounding inside may have caused."""

OF_ROUNDING = frozenset({"GV101", "GV106", "GV110", "GV201", "GV202"})
"""Codes of numbers that rounding inside may have made."""


def carried_out_in_float64(
    sample: Sample, results: Results, wanted: frozenset[Family]
) -> tuple[Sample, Results, str] | None:
    """The sample with short operations in float64, its results, and what was not judged.

    None where nothing is wrong or open, or no operation is short. Where they cannot be carried out in float64
    (what they are quantised to, or the bits of a number, is part of the formula), nothing can be told.
    """
    subject = sample.subject
    is_torch = subject.settings.engine is Engine.TORCH
    if subject.short or sample.is_native or subject.surrogate or subject.across or is_torch:
        return None
    if not any(result.outcome in OPEN or result.uncovered for result in results.values()):
        return None
    blocks = (*sample.inputs.blocks, *sample.problem.outputs.blocks)
    doubles = all(b.dtype in {torch.float64, torch.complex128} for b in blocks)
    seen = witnesses_of(sample).of(sample).met
    if not doubles or not seen & SIXTEEN_BITS:
        return None
    coarsest = min(seen & SIXTEEN_BITS, key=_fineness)
    short = str(coarsest).removeprefix("torch.")
    if coarsest.is_floating_point:
        long = prepare(replace(subject, short=short), sample.case, sample.point, sample.draw)
        if isinstance(long, Sample):
            return (long, *ask(long, wanted))
    return sample, {family: _untold(sample, result, short) for family, result in results.items()}, ""


def _fineness(dtype: torch.dtype) -> float:
    """Sorts the coarsest format first, integers before it."""
    return -torch.finfo(dtype).eps if dtype.is_floating_point else -torch.inf


def computes_in(sample: Sample, results: Results) -> Finding:
    """The note that says how it was verified."""
    short = sample.subject.short
    held = results[Family.PRECISION].outcome is Outcome.PASSED
    return sample.finding(
        "GV104",
        f"forward computes in {short} inside: its derivatives were checked with every operation in float64",
        hint=f"What it returns itself was {'held to the rounding of' if held else 'not judged in'} {short}.",
        severity=Severity.NOTE,
    )


def _untold(sample: Sample, result: CheckResult, short: str) -> CheckResult:
    """The same where rounding to a short format may be what is wrong with the numbers: inconclusive."""
    numbers = {f.code for f in result.findings if f.severity is Severity.ERROR}
    if not numbers or not numbers <= OF_ROUNDING:
        return result
    said = f"forward computes in {short} inside, and nothing tells what that rounds from a mistake"
    kept = tuple(f for f in result.findings if f.code not in numbers)
    hint = "Name a composite of plain torch operations as `reference:`, or declare a surrogate gradient."
    told = sample.finding("GV109", said, hint=hint)
    return replace(result, findings=(*kept, told), outcome=Outcome.INCONCLUSIVE)
