"""From judgements to findings: an error only once it has repeated itself elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from gradverify.model import Closeness, Finding, Precision, Severity
from gradverify.verifier.checks.precision import messages
from gradverify.verifier.checks.precision.judging import Judgement
from gradverify.verifier.checks.precision.native import NativeCall, values_of
from gradverify.verifier.checks.precision.place import Place
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
    """What there is to say of one value; that autocast rounds is what it is for."""
    if judgement.lost.any():
        yield _lost(place, judgement)
        return
    plainly = place.declared and not place.arithmetic.autocast_on
    if judgement.closeness is Closeness.WRONG:
        yield from _wrong(place, judgement)
    elif judgement.closeness is Closeness.UNKNOWN and place.asked and place.declared:
        yield messages.unknown(place.where, judgement)
    elif judgement.closeness is Closeness.ROUNDED and plainly:
        yield from _rounded(place, judgement)
    if judgement.excused_by and plainly:
        yield from _unstable(place, judgement)


def _unstable(place: Place, judgement: Judgement) -> Iterator[Finding]:
    """A formula that loses more than the composite's: a mistake where somebody named a much better one."""
    named = place.sample.subject.reference is not None
    far = judgement.found is not None and judgement.found.worst > FAR_WORSE
    is_wrong = named and far and _repeats(place, judgement)
    severities = (Severity.ERROR, Severity.WARNING) if is_wrong else (Severity.WARNING, Severity.NOTE)
    yield messages.unstable(place.where, judgement, severities[not place.asked])


def _rounded(place: Place, judgement: Judgement) -> Iterator[Finding]:
    declared = _rounds_once(place)
    if not declared or _repeats(place, judgement):
        yield messages.rounded(place.where, judgement, declared=declared)
    rounding = judgement.rounding
    if rounding is not None and rounding.has_outliers and not judgement.excused_by:
        yield messages.outliers(place.where, judgement)


def _wrong(place: Place, judgement: Judgement) -> Iterator[Finding]:
    """GV601: more is lost than rounding explains, once it has repeated itself elsewhere."""
    open_still = judgement.unstable and not (judgement.sure and place.is_stated)
    if not open_still and not _repeats(place, judgement):
        if _rounds_once(place) and judgement.rounding is not None:
            yield from _rounded(place, replace(judgement, closeness=Closeness.ROUNDED))
        elif place.asked and place.declared and not place.briefly:
            yield messages.unrepeated(place.where, judgement)
        return
    # Plain torch derives no better gradient; of an output that is grossly off forward itself is no excuse,
    # nor is it of a formula that is unstable in a dtype which the spec lists.
    no_excuse = judgement.gross and place.declared and judgement.value.output is not None
    no_excuse |= judgement.unstable and judgement.sure and place.declared and place.asked
    as_bad = not no_excuse and _composite_is_as_bad(place, judgement)
    if open_still:
        if place.declared and not as_bad:
            # Near an end a root loses half of its digits by right; unlisted dtypes are then not said to pass.
            open_target = place.is_stated and not place.briefly
            yield messages.not_stable(place.where, judgement, open_target=open_target)
    elif place.declared and judgement.sure and not as_bad:
        yield messages.wrong(place.where, judgement, Severity.ERROR)
    elif place.asked and (place.declared or not as_bad):
        yield messages.wrong(place.where, judgement, Severity.WARNING)


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


def _lost(place: Place, judgement: Judgement) -> Finding:
    """GV602: an error at values that the spec declares; elsewhere as severe as the composite allows."""
    theirs, name = _of_composite(place)
    kept = None
    if theirs is not None:
        number = [value.name for value in theirs.values].index(judgement.value.name)
        finite = torch.isfinite(theirs.got[number])
        kept = bool(finite[judgement.lost].all()) if finite.shape == judgement.lost.shape else None
    # Large values may not be valid: plain torch does no better, or it is not known.
    severity = Severity.ERROR if place.declared else Severity.WARNING if kept else Severity.NOTE
    is_finite = "is finite there" if kept else "is not finite there either"
    said = "" if kept is None else f"{name} {place.arithmetic.said} {is_finite}"
    return messages.not_finite(place.where, judgement, severity, composite=said)


def _composite_is_as_bad(place: Place, judgement: Judgement) -> bool:
    """Whether the composite, run in the native dtype, is wrong there too: it overflows inside as well."""
    theirs, _ = _of_composite(place, for_gradients=judgement.value.output is None)
    truth = "" if theirs is None else place.truth.of(theirs, place.seed)
    if theirs is None or isinstance(truth, str):
        return False
    judged = place.judge(theirs, truth)
    same = next((j for j in judged if j.value.name == judgement.value.name), None)
    return same is not None and (same.closeness is Closeness.WRONG or bool(same.lost.any()))


def _of_composite(place: Place, *, for_gradients: bool = False) -> tuple[NativeCall | None, str]:
    """The call with what the composite gives in the native dtype, and its name; None if that is unknown."""
    call = place.call()
    if not isinstance(call, NativeCall):
        return None, ""
    plain = place.truth.plain(call, for_gradients=for_gradients)
    if plain is None:
        return None, ""
    values = values_of(call.as_called(plain.problem), call.cotangents)
    return None if isinstance(values, Raised) else replace(call, got=values), plain.source
