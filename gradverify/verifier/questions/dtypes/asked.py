"""From judgements to findings (GV102, GV601, GV602): one loop over arithmetics and the places of each.

Beside float64 the truth is the verified gradient at the rounded inputs. An error is one once it has repeated
itself elsewhere, and where torch's own operations are not as bad in that dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from gradverify.model import Closeness, Effort, Engine, Finding, Outcome, Precision, Severity, Swept
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.native_values import NATIVE
from gradverify.verifier.questions.dtypes.calls import (
    Arithmetic,
    NativeCall,
    NoCall,
    Truth,
    as_plain_operations,
    in_float64,
    plainly,
)
from gradverify.verifier.questions.dtypes.judging import CERTAIN, Judgement
from gradverify.verifier.questions.dtypes.places import COTANGENT_SEED, Against, Place, places_of
from gradverify.verifier.questions.dtypes.words import (
    no_call,
    not_finite,
    not_stable,
    other_formats,
    rounded,
    wrong,
)
from gradverify.verifier.questions.result import CheckResult, outcome_of
from gradverify.verifier.questions.subject import Sample, Subject

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
    asked, each = bool(sample.subject.dtypes), arithmetics_of(sample)
    return together(in_arithmetic(sample, OWN, a, asked=asked, in_full=True) for a in each)


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
    sample: Sample, against: Against, arithmetic: Arithmetic, *, asked: bool, in_full: bool = False
) -> CheckResult:
    """Findings and rows of one arithmetic at its places: `in_full`, at all that the spec declares."""
    findings: list[Finding] = []
    rows: list[Precision] = []
    seed, arguments = sample.case.seed + COTANGENT_SEED, sample.exact or sample.arguments
    typical = Place(sample, against, arithmetic, arguments, asked, seed)
    for place in places_of(typical, in_full=in_full):
        called = place.called()
        made: list[Finding] = []
        if isinstance(called, NoCall):
            found = no_call(place, called)
            made = [found] if found is not None and (not rows or is_wrong([found])) else []
            missing = Precision(arithmetic.name, "", Closeness.UNKNOWN, reason=called.why)
            rows += [] if rows else [row_of(missing, made)]
        elif arithmetic.autocast_on:
            made = list(other_formats(place, called[0]))
        for judgement in () if isinstance(called, NoCall) else place.judge(*called):
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
    if judgement.lost.any():
        theirs = _in_plain_torch(place, judgement, call, truth)
        yield not_finite(place, judgement, theirs.lost if theirs is not None else None)
    elif judgement.closeness is Closeness.WRONG:
        yield from _wrong(place, judgement, call, truth)
    elif judgement.closeness is Closeness.ROUNDED and not place.arithmetic.autocast_on:
        yield from _rounded(place, judgement)


def _rounded(place: Place, judgement: Judgement) -> Iterator[Finding]:
    """A note; an error where the spec says that nothing inside is rounded, and it repeats itself."""
    rounds_once = place.sample.subject.internals == DEFAULT
    if not rounds_once or _repeats(place, judgement):
        yield rounded(place, judgement, declared=rounds_once)


def _wrong(place: Place, judgement: Judgement, call: NativeCall, truth: Truth) -> Iterator[Finding]:
    """GV601: more is lost than rounding explains, or than any stable formula loses."""
    certain = not judgement.unstable or (judgement.gross and place.is_stated)
    if certain and not _repeats(place, judgement):
        if place.sample.subject.internals == DEFAULT and judgement.share and not place.arithmetic.autocast_on:
            yield from _rounded(place, replace(judgement, closeness=Closeness.ROUNDED))
        return
    theirs = _in_plain_torch(place, judgement, call, truth)
    excused = theirs is not None and _is_excused(place, judgement, theirs)
    if not certain and not excused:
        # Near an end a root loses half of its digits by right; unlisted dtypes are then not said to pass.
        yield not_stable(place, judgement, open_target=place.is_stated and not place.is_brief)
    elif certain and (place.asked or not excused):
        yield wrong(place, judgement, Severity.WARNING if excused else Severity.ERROR)


def _repeats(place: Place, judgement: Judgement) -> bool:
    """Whether the same is found at other values and another grad_output."""
    there = place.elsewhere()
    called = there.called()
    judged = [] if isinstance(called, NoCall) else there.judge(*called)
    as_bad = {judgement.closeness, Closeness.WRONG}
    same = next((j for j in judged if j.value == judgement.value and j.closeness in as_bad), None)
    return same is not None and (same.gross or not same.unstable)


def _is_excused(place: Place, judgement: Judgement, theirs: Judgement) -> bool:
    """Whether torch's own operations are as wrong there in this dtype: forward overflows inside, say.

    Forward itself is no excuse of an output that is unstable or far off, nor of a formula that is so in a
    dtype which the spec lists.
    """
    of_output, far = judgement.value.output is not None, judgement.gross
    if (of_output and (far or judgement.unstable)) or (far and judgement.unstable and place.asked):
        return False
    as_bad = theirs.closeness is Closeness.WRONG and CERTAIN * theirs.worst >= judgement.worst
    # Where torch derives no number in float64 either, it is no matter of digits.
    return as_bad or bool((theirs.lost & theirs.exact.isfinite()).any())


def _in_plain_torch(place: Place, judgement: Judgement, call: NativeCall, truth: Truth) -> Judgement | None:
    """The judgement of the same value of plain operations; None where nothing tells."""
    theirs = as_plain_operations(place.sample.subject, call)
    judged = [] if theirs is None else place.judge(replace(call, got=theirs), truth)
    return next((j for j in judged if j.value == judgement.value), None)


def wrong_natively(sample: Sample) -> tuple[Finding, ...]:
    """The errors at a size that is not listed, of a sample whose first order is right in float64.

    A vector path takes four floats at a time, and what is left over shows at some sizes only.
    """
    return tuple(f for f in beside_float64(sample).findings if f.severity is Severity.ERROR)
