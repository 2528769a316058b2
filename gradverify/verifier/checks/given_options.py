"""Findings at values that nobody declared, on inferred inputs."""

from __future__ import annotations

from dataclasses import replace

from gradverify.model import Finding, Outcome, Point, Severity, TensorInput
from gradverify.verifier.checks.alternatives import whatever_invented
from gradverify.verifier.checks.inconclusive import deliberate, invented, joined, unsteady
from gradverify.verifier.checks.inventions import OF_A_SLOPE, inventions_of, signs_of
from gradverify.verifier.checks.manifolds import right_without_negative
from gradverify.verifier.checks.result import CheckResult
from gradverify.verifier.checks.steadiness import is_steady
from gradverify.verifier.checks.subject import Sample

OF_NO_VALUE = "GV108"
"""A gradient that is NaN or infinite: its author may divide by what is never zero, or never alike."""

SLIGHT = 1e-3
"""Share of a derivative, the tolerance of torch's gradcheck: where backward is right at moderate values,
one that protects a division by zero is off by so much at tiny ones, and only a spec says that they count."""


def with_given_options(sample: Sample, result: CheckResult) -> CheckResult:
    """Findings at undeclared values, made inconclusive where an option or a value was invented.

    Where backward is right at moderate values, extreme ones need no guard of their own. But an exponent of
    the author's may be one at which the limit exists, and an invented one not; and labels, masks and factors
    are other ones here, which hide all of a row, or name one entry twice.
    """
    if result.outcome is not Outcome.FAILED:
        return result
    findings = tuple(
        _doubted_elsewhere(sample, f) if f.severity is Severity.ERROR else f for f in result.findings
    )
    failed = any(f.severity is Severity.ERROR for f in findings)
    return replace(result, findings=findings, outcome=Outcome.FAILED if failed else Outcome.INCONCLUSIVE)


def _doubted_elsewhere(sample: Sample, finding: Finding) -> Finding:
    """The finding if it is a mistake whatever was invented, and whatever its author means."""
    signs = signs_of(sample, finding)
    if signs:
        return deliberate(finding, joined(signs))
    inventions = inventions_of(sample)
    swept = [d.what for d in inventions if d.certain or d.differ]
    redrawn = [d for d in inventions if d.of_values and not d.certain]
    if redrawn and not whatever_invented(sample, finding, [d.name for d in redrawn]):
        swept += [d.what for d in redrawn]
    swept += [d.what for d in sample.subject.doubts if d.extreme]
    if _lost_entries(sample, finding.input):
        swept.append(f"that zeros of `{finding.input}` are none of its entries")
    if swept:
        return invented(finding, swept)
    if _is_slight(finding) or (finding.code == OF_NO_VALUE and sample.point is Point.SPECIAL):
        return invented(finding, [_values(sample, finding.input)])
    if finding.code not in OF_A_SLOPE:
        return finding
    negative = right_without_negative(sample, finding.input)
    if negative:
        return invented(finding, [f"that negative values of `{name}` are valid" for name in negative])
    return finding if is_steady(sample) else unsteady(finding)


def _values(sample: Sample, name: str | None) -> str:
    """What was guessed at values that nobody declared, in words."""
    names = sample.problem.input_names
    zeros = sample.point is Point.SPECIAL and name in names
    if zeros and bool((sample.problem.primals[names.index(name)] == 0).any()):
        return f"that zeros of `{name}` are valid"
    return "that such values are valid"


def _lost_entries(sample: Sample, name: str | None) -> bool:
    """Whether an input in a sparse layout holds zeros, which are no entries of it and get no gradient."""
    given = [i for i in sample.case.inputs if isinstance(i, TensorInput)]
    names = sample.problem.input_names
    if name not in names or not any(i.name == name and i.layout.startswith("sparse") for i in given):
        return False
    return bool((sample.problem.primals[names.index(name)] == 0).any())


def _is_slight(finding: Finding) -> bool:
    """Whether every entry is off by a small share of itself: an epsilon in a denominator, a tail cut off."""
    worst = finding.entries.worst if finding.entries is not None else ()
    return bool(worst) and all(abs(e.actual - e.expected) <= SLIGHT * abs(e.expected) for e in worst)
