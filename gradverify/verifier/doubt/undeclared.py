"""Findings on inferred inputs at values that nobody declared: extreme ones, zeros, ties."""

from __future__ import annotations

import torch

from gradverify.model import Finding, Outcome, Point, Severity
from gradverify.verifier.checks.inconclusive import deliberate, invented
from gradverify.verifier.checks.result import CheckResult
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.doubt.inferred import OF_A_SLOPE, with_findings
from gradverify.verifier.doubt.intent import signs_of
from gradverify.verifier.doubt.invented import inventions_of, whatever_invented
from gradverify.verifier.doubt.neighbours import tensor_inputs, with_values
from gradverify.verifier.numerics.tolerance import Tolerance
from gradverify.verifier.numerics.verdict import Judged, judge

OF_NO_VALUE = "GV108"
"""A gradient that is NaN or infinite: its author may divide by what is never zero, or never alike."""

SLIGHT = 1e-3
"""Share of a derivative, the tolerance of torch's gradcheck: where backward is right at moderate values,
one that protects a division by zero is off by so much at tiny ones, and only a spec says that they count."""

ASIDE = (1e-3, -1e-3)
"""How far all entries are moved, relative to them; from zero, absolute."""

AS_STEEP = 0.1
"""Relative change of the derivative up to which forward is smooth there: then it has one for certain."""


def guarded_at_undeclared(sample: Sample, result: CheckResult) -> CheckResult:
    """What is told at values nobody declared, inconclusive where an option or a value was invented.

    Where backward is right at moderate values, extreme ones need no guard of their own. But an exponent of
    the author's may be one at which the limit exists, and an invented one not; and labels, masks and factors
    are other ones here, which hide all of a row, or name one entry twice.
    """
    if result.outcome is not Outcome.FAILED:
        return result
    told = (_judged(sample, f) if f.severity is Severity.ERROR else f for f in result.findings)
    return with_findings(result, told)


def _judged(sample: Sample, finding: Finding) -> Finding:
    """The finding if it is a mistake whatever was invented, and whatever its author means."""
    signs = signs_of(sample, finding)
    if signs:
        return deliberate(finding, signs)
    inventions = inventions_of(sample)
    swept = [d.what for d in inventions if d.certain or d.differ]
    redrawn = [d for d in inventions if d.of_values and not d.certain]
    if redrawn and not whatever_invented(sample, finding, [d.name for d in redrawn]):
        swept += [d.what for d in redrawn]
    swept += [d.what for d in sample.subject.doubts if d.extreme]
    of_input = tensor_inputs(sample.case).get(finding.input or "")
    if of_input is not None and of_input.layout.startswith("sparse") and sample.point is Point.SPECIAL:
        swept.append(f"that zeros of `{finding.input}` are none of its entries")
    if not swept and (_is_slight(finding) or (finding.code == OF_NO_VALUE and sample.point is Point.SPECIAL)):
        swept = [f"that such values of `{finding.input}` are valid"]
    if not swept and finding.code in OF_A_SLOPE and not _has_derivative(sample):
        swept = ["that forward has a derivative at these inputs (a little aside it is another one)"]
    return invented(finding, swept) if swept else finding


def _is_slight(finding: Finding) -> bool:
    """Whether every entry is off by a small share of itself: an epsilon in a denominator, a tail cut off."""
    worst = finding.entries.worst if finding.entries is not None else ()
    return bool(worst) and all(abs(e.actual - e.expected) <= SLIGHT * abs(e.expected) for e in worst)


def _has_derivative(sample: Sample) -> bool:
    """Whether forward is about as steep a little aside, at most entries that are wrong.

    An iteration that does not converge, a root where none exists and a quotient at its pole have no
    derivative that a difference quotient could tell, though one may seem to settle.
    """
    tolerance = Tolerance(sample.subject.settings.rtol)
    here = sample.judged.get(1) or judge(sample.problem, tolerance)
    if not isinstance(here, Judged) or not here.comparison.wrong.any():
        return True
    wrong, slopes = here.comparison.wrong, here.comparison.numerical.nan_to_num(0.0)
    usual = slopes[slopes != 0].abs().median() if slopes.any() else torch.zeros((), dtype=slopes.dtype)
    for step in ASIDE:
        there = judge(_moved(sample, step).problem, tolerance)
        if isinstance(there, Judged):
            change = (there.comparison.numerical.nan_to_num(0.0) - slopes)[wrong].abs()
            if (change > AS_STEEP * torch.maximum(slopes[wrong].abs(), usual)).double().mean() > 1 / 2:
                return False
    return True


def _moved(sample: Sample, step: float) -> Sample:
    generator = torch.Generator().manual_seed(11)
    moved = {}
    for name, value in zip(sample.problem.input_names, sample.problem.primals, strict=True):
        sign = torch.randint(0, 2, value.shape, generator=generator) * 2 - 1
        size = torch.where(value == 0, 1.0, value.abs())
        moved[name] = value + step * sign.to(value) * size.to(value)
    return with_values(sample, moved)
