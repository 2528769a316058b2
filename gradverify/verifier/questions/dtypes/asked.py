"""From judgements to findings (GV102, GV601, GV602): one loop over arithmetics and the places of each.

Beside float64 the truth is the verified gradient at the rounded inputs. An error is one where torch's own
operations are not as bad in that dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from gradverify.model import Closeness, Effort, Engine, Finding, Outcome, Point, Precision, Severity, Swept
from gradverify.verifier.inputs.native_values import NATIVE
from gradverify.verifier.questions.dtypes.calls import (
    Arithmetic,
    NativeCall,
    NoCall,
    Truth,
    as_plain_operations,
    plainly,
)
from gradverify.verifier.questions.dtypes.judging import CERTAIN, Judgement, judge_call
from gradverify.verifier.questions.dtypes.places import Place, places_of
from gradverify.verifier.questions.dtypes.words import (
    OF_A_GRADIENT,
    no_call,
    not_finite,
    not_stable,
    rounded,
    wrong,
)
from gradverify.verifier.questions.result import CheckResult, outcome_of
from gradverify.verifier.questions.subject import Sample

DEFAULT = "float32"
"""What every target is judged in that runs in it, unless dtypes are listed."""


def beside_float64(sample: Sample) -> CheckResult:
    """Judge a verified sample in every dtype that is asked for."""
    asked, each = bool(sample.subject.dtypes), arithmetics_of(sample)
    return together(in_arithmetic(sample, a, asked=asked, in_full=True) for a in each)


def together(results: Iterable[CheckResult]) -> CheckResult:
    """The results of several dtypes as one."""
    return functools.reduce(CheckResult.beside, results, CheckResult(outcome=Outcome.NOT_RUN))


def arithmetics_of(sample: Sample) -> Iterator[Arithmetic]:
    """The listed dtypes, else float32; nothing where speed is asked for."""
    subject = sample.subject
    cheap = subject.settings.effort is Effort.QUICK or subject.settings.engine is Engine.TORCH
    default = () if cheap and not subject.short else (DEFAULT,)
    return (plainly(d, subject.short) for d in subject.dtypes or default if d in NATIVE)


def in_arithmetic(
    sample: Sample, arithmetic: Arithmetic, *, asked: bool, in_full: bool = False
) -> CheckResult:
    """Findings and rows of one arithmetic at its places: `in_full`, at all that the spec declares."""
    findings: list[Finding] = []
    rows: list[Precision] = []
    typical = Place(sample, arithmetic, sample.exact or sample.arguments, asked)
    for place in places_of(typical, in_full=in_full):
        called, made = place.called(), list[Finding]()
        if isinstance(called, NoCall):
            found = no_call(place, called)
            made = [found] if found is not None and (not rows or is_wrong([found])) else []
            missing = Precision(arithmetic.name, "", Closeness.UNKNOWN, reason=called.why)
            rows += [] if rows else [row_of(missing, made)]
        for judgement in () if isinstance(called, NoCall) else judge_call(*called, briefly=place.is_brief):
            said = list(findings_of(place, judgement, *called))
            row = Precision(arithmetic.name, judgement.value.name, judgement.closeness, judgement.worst)
            told = is_wrong(said) or not place.is_brief or (said and not sample.is_native)
            rows += [row_of(replace(row, hides=judgement.hides), said)] if told else []
            made += said
        findings += made
        if is_wrong(made) or (isinstance(called, NoCall) and not place.values):
            break  # what is wrong there is wrong elsewhere as well
    outcome = outcome_of(findings)
    if outcome is Outcome.PASSED and any(f.code == "GV109" for f in findings):
        outcome = Outcome.INCONCLUSIVE
    elif outcome is Outcome.PASSED and all(row.closeness is Closeness.UNKNOWN for row in rows):
        outcome = Outcome.NOT_RUN
    return CheckResult(tuple(findings), outcome, swept=Swept(precision=tuple(rows)))


def is_wrong(findings: Iterable[Finding]) -> bool:
    """Whether one of them is an error."""
    return any(f.severity is Severity.ERROR for f in findings)


def row_of(row: Precision, findings: Sequence[Finding]) -> Precision:
    """A line of the table; what is suspected and not proven counts as not judged."""
    suspected = Closeness.UNKNOWN if row.closeness is Closeness.WRONG else row.closeness
    return replace(row, closeness=Closeness.WRONG if is_wrong(findings) else suspected)


def findings_of(place: Place, judgement: Judgement, call: NativeCall, truth: Truth) -> Iterator[Finding]:
    """What there is to say of one value; that autocast rounds is what it is for."""
    is_unstable = judgement.closeness is Closeness.UNKNOWN
    if judgement.lost.any():
        yield not_finite(place, judgement)
    elif is_unstable or judgement.closeness is Closeness.WRONG:
        excused = _is_excused(judgement, _in_plain_torch(place, judgement, call, truth))
        is_far = judgement.is_large and judgement.value.output is None  # forward is what it is
        is_certain = judgement.gross and (place.is_stated or is_far)
        if is_unstable and not is_certain:
            # Near an end a root loses half of its digits by right.
            yield from () if excused else (not_stable(place, judgement),)
        elif place.asked or not excused:
            counts = not excused and (place.asked or place.sample.is_native or judgement.is_large)
            yield wrong(place, judgement, Severity.ERROR if counts else Severity.WARNING)
    elif judgement.closeness is Closeness.ROUNDED and not place.arithmetic.autocast_on:
        yield rounded(place, judgement, declared=place.sample.subject.internals == DEFAULT)


def _is_excused(judgement: Judgement, theirs: Judgement | None) -> bool:
    """Whether torch's own operations are as wrong there in this dtype: forward overflows inside, say.

    Forward itself is no excuse of an output that is unstable or far off.
    """
    is_unstable = judgement.closeness is Closeness.UNKNOWN
    if theirs is None or (judgement.value.output is not None and (judgement.gross or is_unstable)):
        return False
    as_bad = theirs.closeness in {Closeness.WRONG, Closeness.UNKNOWN}
    # Where torch derives no number in float64 either, it is no matter of digits.
    lost = bool((theirs.lost & theirs.exact.isfinite()).any())
    return lost or (as_bad and CERTAIN * theirs.worst >= judgement.worst)


def _in_plain_torch(place: Place, judgement: Judgement, call: NativeCall, truth: Truth) -> Judgement | None:
    """The judgement of the same value of plain operations; None where nothing tells."""
    theirs = as_plain_operations(place.sample.subject, call)
    judged = [] if theirs is None else judge_call(replace(call, got=theirs), truth, briefly=place.is_brief)
    return next((j for j in judged if j.value == judgement.value), None)


def wrong_natively(sample: Sample) -> tuple[Finding, ...]:
    """The errors at a size that is not listed, of a sample whose first order is right in float64.

    A vector path takes four floats at a time, and what is left over shows at some sizes only. At special
    values several gradients may be right.
    """
    errors = (f for f in beside_float64(sample).findings if f.severity is Severity.ERROR)
    return tuple(
        f for f in errors if f.code not in OF_A_GRADIENT or (f.case and f.case.point is Point.TYPICAL)
    )
