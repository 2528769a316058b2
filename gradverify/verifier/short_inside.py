"""A target that computes in 16 or 8 bits inside: its formula in float64, then its rounding.

Seen by the dtypes of its operations, and asked for only where something would be reported: no mode runs
around a target that is right without one.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from gradverify.model import Engine, Finding, Outcome, Severity
from gradverify.rules import Family
from gradverify.verifier.checks.result import CheckResult
from gradverify.verifier.checks.samples import prepare
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.families import run_checks
from gradverify.verifier.numerics.flat import Block
from gradverify.verifier.numerics.operations import short_format

OPEN = frozenset({Outcome.FAILED, Outcome.INCONCLUSIVE})
"""Outcomes that rounding inside may have caused."""

Results = dict[Family, CheckResult]


def carried_out_in_float64(
    sample: Sample, results: Results, wanted: frozenset[Family]
) -> tuple[Sample, Results, str] | None:
    """The sample with short operations in float64, its results, and what was not judged.

    None where nothing is wrong or open, no operation is short, or they cannot be carried out in float64. A
    format of integers has no float64: what it is quantised to is part of the formula.
    """
    subject = sample.subject
    asked = (
        subject.surrogate is None and subject.across is None and subject.settings.engine is not Engine.TORCH
    )
    if subject.short or sample.is_native or not asked or not any(map(_is_open, results.values())):
        return None
    doubles = all(b.dtype in {torch.float64, torch.complex128} for b in _blocks(sample))
    short = short_format(sample.problem) if doubles else ""
    if not short or not getattr(torch, short).is_floating_point:
        return None
    long = prepare(replace(subject, short=short), sample.case, sample.point, sample.draw)
    return (long, *run_checks(long, wanted)) if isinstance(long, Sample) else None


def computes_in(sample: Sample) -> Finding:
    """The note that says how it was verified."""
    short = sample.subject.short
    return sample.finding(
        "GV104",
        f"forward computes in {short} inside: backward was verified with every operation in float64, and its "
        f"values as it computes them were held to the rounding of {short}",
        hint=f"An error that {short} rounds away would not show in training, and was looked for in float64.",
        severity=Severity.NOTE,
    )


def _is_open(result: CheckResult) -> bool:
    return result.outcome in OPEN or bool(result.uncovered)


def _blocks(sample: Sample) -> tuple[Block, ...]:
    return (*sample.inputs.blocks, *sample.problem.outputs.blocks)
