"""From judgements to findings: an accusation only once it has repeated itself elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gradverify.model import Closeness, Finding, Precision, Severity
from gradverify.verifier.checks.precision import telling
from gradverify.verifier.checks.precision.judging import Judgement, judge_call
from gradverify.verifier.checks.precision.native import NativeCall, values_of
from gradverify.verifier.checks.precision.place import Place
from gradverify.verifier.checks.precision.truth import stays_finite
from gradverify.verifier.guard import Raised

FAR_WORSE = 10.0
"""Times the limit by the reference's rounding beyond which a listed dtype's own rounding excuses nothing."""


def row_of(place: Place, judgement: Judgement, findings: Sequence[Finding]) -> Precision:
    """A line of the table; what is suspected and not proven counts as not judged."""
    closeness = judgement.closeness
    if any(f.severity is Severity.ERROR for f in findings):
        closeness = Closeness.WRONG
    elif closeness is Closeness.WRONG:
        closeness = Closeness.UNKNOWN
    return Precision(place.arithmetic.name, judgement.value.name, closeness, judgement.worst, judgement.hides)


def findings_of(place: Place, judgement: Judgement) -> Iterator[Finding]:
    """What there is to say of one value."""
    if judgement.lost.any():
        made = lost(place, judgement)
        if made is not None:
            yield made
            return
    match judgement.closeness:
        case Closeness.WRONG:
            yield from accused(place, judgement)
        case Closeness.UNKNOWN if place.asked and place.declared:
            yield telling.unknown(place.where, judgement)
        case Closeness.ROUNDED if place.declared:
            yield from _rounded(place, judgement)
        case _:
            pass
    if judgement.excused_by and place.declared:
        yield from _unstable(place, judgement)


def _unstable(place: Place, judgement: Judgement) -> Iterator[Finding]:
    """A formula that loses more than the composite's: a mistake where somebody named a much better one."""
    named = place.sample.subject.reference is not None
    far = judgement.found is not None and judgement.found.worst > FAR_WORSE
    if named and far and _repeats(place, judgement):
        severity = Severity.ERROR if place.asked else Severity.WARNING
    else:
        severity = Severity.WARNING if place.asked else Severity.NOTE
    yield telling.unstable(place.where, judgement, severity)


def _rounded(place: Place, judgement: Judgement) -> Iterator[Finding]:
    if not _rounds_once(place):
        yield telling.rounded(place.where, judgement, declared=False)
    elif _repeats(place, judgement):
        yield telling.rounded(place.where, judgement, declared=True)
    rounding = judgement.rounding
    if rounding is not None and rounding.has_outliers and not judgement.excused_by:
        yield telling.outliers(place.where, judgement)


def accused(place: Place, judgement: Judgement) -> Iterator[Finding]:
    """GV601: more is lost than rounding explains, once it has repeated itself elsewhere."""
    if not _repeats(place, judgement):
        if _rounds_once(place) and judgement.rounding is not None:
            yield from _rounded(place, replace(judgement, closeness=Closeness.ROUNDED))
        elif place.asked and place.declared:
            yield telling.unrepeated(place.where, judgement)
        return
    as_bad = _composite_is_as_bad(place, judgement)
    if place.declared and judgement.sure and not as_bad:
        yield telling.wrong(place.where, judgement, Severity.ERROR)
    elif place.asked and (place.declared or not as_bad):
        yield telling.wrong(place.where, judgement, Severity.WARNING)


def _rounds_once(place: Place) -> bool:
    """Whether the spec says that nothing inside is rounded to the dtype."""
    return place.sample.subject.internals == "float32" and not place.arithmetic.autocast_on


def _repeats(place: Place, judgement: Judgement) -> bool:
    """Whether the same is found at other values and another grad_output."""
    judged = place.elsewhere().judged()
    if isinstance(judged, str):
        return False
    as_bad = {judgement.closeness, Closeness.WRONG} - {Closeness.UNKNOWN}
    same = next((j for j in judged if j.value.name == judgement.value.name), None)
    if same is None or same.closeness not in as_bad:
        return False
    as_far = bool(same.excused_by) or same.closeness is Closeness.WRONG
    return same.sure >= judgement.sure and (as_far or not judgement.excused_by)


def lost(place: Place, judgement: Judgement) -> Finding | None:
    """GV602, as severe as the composite allows: what plain torch loses as well is nobody's mistake."""
    kept, name = _composite_keeps(place, judgement)
    if kept:
        said = f"{name} {place.arithmetic.said} is finite there"
        severity = Severity.ERROR if place.declared else Severity.WARNING
        return telling.not_finite(place.where, judgement, severity, composite=said)
    if not place.declared:  # large values may not be valid: plain torch does no better, or nobody knows
        said = "" if kept is None else f"{name} {place.arithmetic.said} is not finite there either"
        return telling.not_finite(place.where, judgement, Severity.NOTE, composite=said)
    if kept is None:  # nobody knows what plain torch would do: float32 by default accuses nobody by that
        severity = Severity.ERROR if place.asked else Severity.WARNING
        return telling.not_finite(place.where, judgement, severity, composite="")
    severity = Severity.WARNING if place.asked else Severity.NOTE
    said = f"{name} {place.arithmetic.said} is not finite there either"
    return telling.not_finite(place.where, judgement, severity, composite=said)


def _composite_is_as_bad(place: Place, judgement: Judgement) -> bool:
    """Whether the composite, run in the native dtype, is wrong there too: it overflows inside as well."""
    call = place.call()
    plain = place.truth.plain(call) if isinstance(call, NativeCall) else None
    if plain is None or not isinstance(call, NativeCall):
        return False
    values = values_of(call.as_called(plain.problem), call.cotangents)
    truth = place.truth.of(call, place.seed)
    if isinstance(values, Raised) or isinstance(truth, str):
        return False
    theirs = judge_call(replace(call, got=values), truth)
    same = next((j for j in theirs if j.value.name == judgement.value.name), None)
    return same is not None and (same.closeness is Closeness.WRONG or bool(same.lost.any()))


def _composite_keeps(place: Place, judgement: Judgement) -> tuple[bool | None, str]:
    """Whether the composite, run in the native dtype, is finite where the value is not; None if unknown."""
    call = place.call()
    plain = place.truth.plain(call) if isinstance(call, NativeCall) else None
    if plain is None or not isinstance(call, NativeCall):
        return None, ""
    finite = stays_finite(plain.problem, call)
    number = [value.name for value in call.values].index(judgement.value.name)
    if finite is None or finite[number].shape != judgement.lost.shape:
        return None, plain.source
    return bool(finite[number][judgement.lost].all()), plain.source
