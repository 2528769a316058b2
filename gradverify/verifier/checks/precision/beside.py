"""A target that was verified in float64, judged in its native dtypes beside it."""

from __future__ import annotations

from torch import Tensor

from gradverify.model import Closeness, Effort, Engine, Finding, Outcome, Precision, Severity, Swept
from gradverify.verifier.checks.composite import Composite, NoComposite
from gradverify.verifier.checks.precision import messages
from gradverify.verifier.checks.precision.arithmetic import plainly
from gradverify.verifier.checks.precision.findings import findings_of, row_of
from gradverify.verifier.checks.precision.native import NoCall, values_of
from gradverify.verifier.checks.precision.place import Place, places_of
from gradverify.verifier.checks.precision.truth import Strategy, Verified
from gradverify.verifier.checks.result import CheckResult, outcome_of
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.native_values import NATIVE

DEFAULT = "float32"
"""What every target is judged in that runs in it, unless dtypes are listed."""

GROSS = 2.0**-4
"""Of the largest entry: more than float32 rounds away of a value, less than a wrong branch makes of it."""


def dtypes_of(sample: Sample) -> tuple[tuple[str, bool], ...]:
    """(dtype, was asked for) pairs; float32 by default, and nothing beside it where speed is asked for."""
    subject = sample.subject
    if subject.dtypes:
        return tuple((name, True) for name in subject.dtypes if name in NATIVE)
    cheap = subject.settings.effort is Effort.QUICK or subject.settings.engine is Engine.TORCH
    return () if cheap and not subject.short else ((DEFAULT, False),)


def beside_float64(sample: Sample, composite: Composite | NoComposite) -> CheckResult:
    """Judge a verified sample in every dtype that is asked for."""
    truth = Verified(sample, composite)
    results = [
        in_dtype(sample, truth, dtype, asked=asked, in_full=True) for dtype, asked in dtypes_of(sample)
    ]
    return together(results)


def not_judged(sample: Sample, reason: str) -> CheckResult:
    """Say of every dtype that was listed why it is not judged."""
    rows = [Precision(d, "", Closeness.UNKNOWN, reason=reason) for d, asked in dtypes_of(sample) if asked]
    return CheckResult(outcome=Outcome.NOT_RUN, swept=Swept(precision=tuple(rows)))


def together(results: list[tuple[list[Finding], list[Precision]]]) -> CheckResult:
    """The results of several dtypes as one."""
    findings = [finding for found, _ in results for finding in found]
    rows = [row for _, judged in results for row in judged]
    if not rows:
        return CheckResult(tuple(findings), Outcome.NOT_RUN)
    known = any(row.closeness is not Closeness.UNKNOWN for row in rows)
    outcome = outcome_of(findings)
    if outcome is Outcome.PASSED and any(f.code == "GV109" for f in findings):
        outcome = Outcome.INCONCLUSIVE
    elif outcome is Outcome.PASSED and not known:
        outcome = Outcome.NOT_RUN
    return CheckResult(tuple(findings), outcome, swept=Swept(precision=tuple(rows)))


def in_dtype(
    sample: Sample, truth: Strategy, dtype: str, *, asked: bool, in_full: bool = False
) -> tuple[list[Finding], list[Precision]]:
    """Findings and rows of one dtype at its places: `in_full`, at all that the spec declares."""
    findings: list[Finding] = []
    rows: list[Precision] = []
    typical = Place.typical(sample, truth, plainly(dtype, sample.subject.short), asked=asked)
    for place in places_of(typical, in_full=in_full):
        if any(f.severity is Severity.ERROR for f in findings):
            break  # what is wrong there is wrong elsewhere as well
        judged = place.judged()
        if isinstance(judged, str):
            if rows:
                continue
            rows.append(Precision(dtype, "", Closeness.UNKNOWN, reason=judged))
            findings += [messages.refused(place.where, judged)] if asked else []
            break
        for judgement in judged:
            made = list(findings_of(place, judgement))
            findings += made
            failed = any(f.severity is Severity.ERROR for f in made)
            if place.declared and (failed or not place.briefly or (made and not sample.is_native)):
                rows.append(row_of(place, judgement, made))
    return findings, rows


def wrong_natively(sample: Sample) -> tuple[Finding, ...]:
    """The errors at a size that is not listed, of a sample whose first order is right in float64.

    A vector path takes four floats at a time, and what is left over shows at some sizes only. One native
    call beside one in float64 tells what is gross; only then is the dtype judged in full.
    """
    truth = Verified(sample, NoComposite("none is searched for at unlisted sizes"))
    findings: list[Finding] = []
    for dtype, asked in dtypes_of(sample):
        call = Place.typical(sample, truth, plainly(dtype, sample.subject.short), asked=asked).call()
        if isinstance(call, NoCall):
            continue
        exact = values_of(call.exact, call.exact_cotangents)
        if not isinstance(exact, Raised) and any(map(_is_gross, call.got, exact)):
            findings += in_dtype(sample, truth, dtype, asked=asked)[0]
    return tuple(f for f in findings if f.severity is Severity.ERROR)


def _is_gross(got: Tensor, exact: Tensor) -> bool:
    if not exact.numel() or not exact.isfinite().all():
        return False
    return bool((got - exact).abs().max() > GROSS * exact.abs().max())
