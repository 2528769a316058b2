"""From judgements to findings (GV601, GV602): an error only once it has repeated itself elsewhere.

Beside float64 the truth is the verified gradient at the rounded inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from gradverify.model import Closeness, Effort, Engine, Finding, Outcome, Precision, Severity, Swept
from gradverify.verifier.checks.dtypes.calls import (
    NativeCall,
    Truth,
    as_plain_operations,
    in_float64,
    plainly,
)
from gradverify.verifier.checks.dtypes.judging import Judgement
from gradverify.verifier.checks.dtypes.places import Against, Place, places_of
from gradverify.verifier.checks.result import CheckResult, outcome_of
from gradverify.verifier.checks.subject import Sample, Subject
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.native_values import NATIVE

DEFAULT = "float32"
"""What every target is judged in that runs in it, unless dtypes are listed."""


def _own(call: NativeCall) -> Truth | str:
    found = Truth.of(call.exact, call)
    return f"in float64 it raises {found.error.type}" if isinstance(found, Raised) else found


OWN = Against("its own verified float64 path", _own)
"""The target's own float64 values, verified before."""


def in_float64_of(subject: Subject) -> Against:
    """What a target without a float64 path is held against."""
    name = "the reference" if subject.reference is not None else "forward's operations in float64"

    def at(call: NativeCall) -> Truth | str:
        wide = in_float64(subject, call.problem, call.exact.arguments, call.outputs)
        found = NO_TRUTH if wide is None else Truth.of(wide, call)
        if isinstance(found, Raised):
            return f"{name} cannot be differentiated in float64: {found.error.type}"
        return found

    return Against(name, at)


NO_TRUTH = "it has no float64 path and no composite in plain torch operations"


def beside_float64(sample: Sample) -> CheckResult:
    """Judge a verified sample in every dtype that is asked for."""
    dtypes = dtypes_of(sample)
    return together([in_dtype(sample, OWN, d, asked=asked, in_full=True) for d, asked in dtypes])


def dtypes_of(sample: Sample) -> tuple[tuple[str, bool], ...]:
    """(dtype, was asked for) pairs; float32 by default, and nothing beside it where speed is asked for."""
    subject = sample.subject
    if subject.dtypes:
        return tuple((name, True) for name in subject.dtypes if name in NATIVE)
    cheap = subject.settings.effort is Effort.QUICK or subject.settings.engine is Engine.TORCH
    return () if cheap and not subject.short else ((DEFAULT, False),)


def not_judged(sample: Sample, reason: str) -> CheckResult:
    """Say of every dtype that was listed why it is not judged."""
    rows = [Precision(d, "", Closeness.UNKNOWN, reason=reason) for d, asked in dtypes_of(sample) if asked]
    return CheckResult(outcome=Outcome.NOT_RUN, swept=Swept(precision=tuple(rows)))


Found = tuple[list[Finding], list[Precision]]
"""Findings, and rows of the table."""


def together(results: Sequence[Found]) -> CheckResult:
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


def in_dtype(sample: Sample, against: Against, dtype: str, *, asked: bool, in_full: bool = False) -> Found:
    """Findings and rows of one dtype at its places: `in_full`, at all that the spec declares."""
    findings: list[Finding] = []
    rows: list[Precision] = []
    typical = Place.typical(sample, against, plainly(dtype, sample.subject.short), asked=asked)
    for place in places_of(typical, in_full=in_full):
        if is_wrong(findings):
            break  # what is wrong there is wrong elsewhere as well
        judged = place.judged()
        if isinstance(judged, str):
            if rows:
                continue
            rows.append(Precision(dtype, "", Closeness.UNKNOWN, reason=judged))
            findings += [place.where.refused(judged)] if asked else []
            break
        for judgement in judged:
            made = list(findings_of(place, judgement))
            findings += made
            told = is_wrong(made) or not place.briefly or (made and not sample.is_native)
            rows += [row_of(place, judgement, made)] if place.declared and told else []
    return findings, rows


def is_wrong(findings: Iterable[Finding]) -> bool:
    """Whether one of them is an error."""
    return any(f.severity is Severity.ERROR for f in findings)


def row_of(place: Place, judgement: Judgement, findings: Sequence[Finding]) -> Precision:
    """A line of the table; what is suspected and not proven counts as not judged."""
    closeness = judgement.closeness
    if is_wrong(findings):
        closeness = Closeness.WRONG
    elif closeness is Closeness.WRONG:
        closeness = Closeness.UNKNOWN
    return Precision(place.arithmetic.name, judgement.value.name, closeness, judgement.worst, judgement.hides)


def findings_of(place: Place, judgement: Judgement) -> Iterator[Finding]:
    """What there is to say of one value; that autocast rounds is what it is for."""
    if judgement.lost.any():
        found = _lost(place, judgement)
        # Nobody asked for such values in this dtype: it matters where plain torch does better.
        if place.asked or place.declared or found.severity is Severity.WARNING:
            yield found
    elif judgement.closeness is Closeness.WRONG:
        yield from _wrong(place, judgement)
    elif judgement.closeness is Closeness.UNKNOWN and place.asked and place.declared:
        yield place.where.unknown(judgement)
    elif judgement.closeness is Closeness.ROUNDED and place.declared and not place.arithmetic.autocast_on:
        yield from _rounded(place, judgement)


def _rounded(place: Place, judgement: Judgement) -> Iterator[Finding]:
    declared = _rounds_once(place)
    if not declared or _repeats(place, judgement):
        yield place.where.rounded(judgement, declared=declared)
    if judgement.rounding is not None and judgement.rounding.has_outliers:
        yield place.where.outliers(judgement)


def _wrong(place: Place, judgement: Judgement) -> Iterator[Finding]:
    """GV601: more is lost than rounding explains, once it has repeated itself elsewhere."""
    open_still = judgement.unstable and not (judgement.sure and place.is_stated)
    if not open_still and not _repeats(place, judgement):
        if _rounds_once(place) and judgement.rounding is not None:
            yield from _rounded(place, replace(judgement, closeness=Closeness.ROUNDED))
        return
    excused = _is_excused(place, judgement)
    if open_still:
        if place.declared and not excused:
            # Near an end a root loses half of its digits by right; unlisted dtypes are then not said to pass.
            yield place.where.not_stable(judgement, open_target=place.is_stated and not place.briefly)
    elif place.declared and judgement.sure and not excused:
        yield place.where.wrong(judgement, Severity.ERROR)
    elif (place.asked and place.declared) or not (place.declared or excused):
        yield place.where.wrong(judgement, Severity.WARNING)


def _rounds_once(place: Place) -> bool:
    """Whether the spec says that nothing inside is rounded to the dtype."""
    return place.sample.subject.internals == "float32" and not place.arithmetic.autocast_on


def _repeats(place: Place, judgement: Judgement) -> bool:
    """Whether the same is found at other values and another grad_output."""
    judged = place.elsewhere().judged()
    if isinstance(judged, str):
        return False
    as_bad = {judgement.closeness, Closeness.WRONG} - {Closeness.UNKNOWN}
    same = next((j for j in judged if j.value == judgement.value), None)
    return same is not None and same.closeness in as_bad and same.sure >= judgement.sure


def _is_excused(place: Place, judgement: Judgement) -> bool:
    """Whether torch's own operations are wrong there in this dtype, too: forward overflows inside, say.

    Forward itself is no excuse of an output that is grossly off, nor of a formula that is unstable in a dtype
    which the spec lists.
    """
    unstable = judgement.unstable and judgement.sure and place.asked
    if place.declared and (unstable or (judgement.gross and judgement.value.output is not None)):
        return False
    call = place.call()
    theirs = as_plain_operations(place.sample.subject, call) if isinstance(call, NativeCall) else None
    truth = place.against.at(call) if isinstance(call, NativeCall) else call.why
    if theirs is None or isinstance(truth, str) or not isinstance(call, NativeCall):
        return False
    judged = place.judge(replace(call, got=theirs), truth)
    same = next((j for j in judged if j.value == judgement.value), None)
    # Where torch derives no number in float64 either, it is no matter of digits.
    return same is not None and (
        same.closeness is Closeness.WRONG or bool((same.lost & same.exact.isfinite()).any())
    )


def _lost(place: Place, judgement: Judgement) -> Finding:
    """GV602: an error at values that the spec declares; elsewhere as severe as plain operations allow."""
    call, subject = place.call(), place.sample.subject
    theirs = as_plain_operations(subject, call) if isinstance(call, NativeCall) else None
    kept = None
    if theirs is not None and isinstance(call, NativeCall):
        finite = theirs[call.values.index(judgement.value)].isfinite()
        kept = bool(finite[judgement.lost].all()) if finite.shape == judgement.lost.shape else None
    # Large values may not be valid: plain torch does no better, or it is not known.
    severity = Severity.ERROR if place.declared else Severity.WARNING if kept else Severity.NOTE
    name = "the reference" if subject.reference is not None else "forward itself"
    name = name if judgement.value.output is not None else f"what torch derives of {name}"
    finite_there = "is finite there" if kept else "is not finite there either"
    said = "" if kept is None else f"{name} {place.arithmetic.said} {finite_there}"
    return place.where.not_finite(judgement, severity, composite=said)


def wrong_natively(sample: Sample) -> tuple[Finding, ...]:
    """The errors at a size that is not listed, of a sample whose first order is right in float64.

    A vector path takes four floats at a time, and what is left over shows at some sizes only.
    """
    found = (in_dtype(sample, OWN, dtype, asked=asked)[0] for dtype, asked in dtypes_of(sample))
    return tuple(f for each in found for f in each if f.severity is Severity.ERROR)
