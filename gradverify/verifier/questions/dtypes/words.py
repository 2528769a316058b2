"""What is said of a value in a native dtype (GV6xx, GV102, GV109), and of what is no loss of digits."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from gradverify.model import Closeness, Entries, Finding, Severity
from gradverify.verifier.numerics.problem import Layout, multi_index
from gradverify.verifier.questions.dtypes.calls import NoCall
from gradverify.verifier.questions.dtypes.judging import Judgement, sixteen_bits
from gradverify.verifier.questions.dtypes.places import Place
from gradverify.verifier.questions.first_order import backward_raised
from gradverify.verifier.questions.wording import count_of, number, output_name, percent, vector_entries

LOSS, UNDER_AUTOCAST, OPEN = "GV601", "GV603", "GV109"

OF_AN_OUTPUT = "GV301"
OF_A_GRADIENT = ("GV101", "GV302")
"""Codes of what is no loss of digits: another value than the reference has, another gradient."""

SIXTEEN_BITS = "sixteen-bits-inside"
"""The cause where a value of more digits consists of numbers of a shorter dtype."""

HINT_SIXTEEN = (
    "Something inside is rounded to {}: a sum that is accumulated in it, whose error grows with its length, "
    "or a cast on the way. Keep float32 until the end."
)
OTHER_VALUES = "Forward and reference give different values: the gradients are not compared."
NO_ROUNDING = "That is no rounding: look at the formula, an index, a mask, a sum that was not taken."
HINT_UNSTABLE = (
    "The formula loses its digits at these values, or a branch for them is wrong: subtract the maximum "
    "before exp and the mean before squaring, add logarithms instead of multiplying, or compute in more "
    "digits inside. If such values are not valid in this dtype, narrow `range`, or list other `dtypes`."
)
HINT_INTERNALS = (
    "If the kernel keeps float32 inside, set `internals: float32` in the spec: then this is a failure."
)
HINT_WRONG = (
    "Look for sums kept in the short dtype, casts to a shorter one, large "
    "numbers that cancel: computing in float32 inside and rounding once at the end is the usual remedy."
)
HINT_CASTS = (
    'What must not be cast needs torch.amp.custom_fwd(device_type="{kind}", cast_inputs=torch.float32) on '
    'forward and torch.amp.custom_bwd(device_type="{kind}") on backward, or an explicit `.float()`.'
)
HINT_NO_AUTOCAST = 'Write `ignore: {GV603: "why"}` in its spec where autocast is not meant.'


def _finding(
    place: Place, judgement: Judgement, said: str, hint: str, severity: Severity, code: str = LOSS
) -> Finding:
    """A finding on one value; `said` follows its name."""
    kind, value = place.arithmetic.autocast_on, judgement.value
    if kind and code in {LOSS, "GV602"}:
        code, hint = UNDER_AUTOCAST, HINT_CASTS.format(kind=kind) if hint == HINT_WRONG else hint
    name = f"the gradient with respect to `{value.input}`"
    if value.output is not None:
        name = output_name(value.output, place.sample.outputs_returned)
    where = f" ({place.values})" if place.values else ""
    return place.sample.finding(
        code,
        f"{name} {place.arithmetic.said}{where} {said}",
        hint=hint,
        output=value.output,
        input=value.input,
        severity=severity,
        entries=_entries(judgement),
        badness=math.inf if math.isnan(judgement.worst) else judgement.worst,
    )


def wrong(place: Place, judgement: Judgement, severity: Severity) -> Finding:
    """More is lost than rounding explains."""
    short, times = sixteen_bits(judgement), f"{number(judgement.worst)} times what rounding explains"
    code = LOSS if short else _code(place, judgement)
    of_loss = HINT_UNSTABLE if judgement.closeness is Closeness.UNKNOWN else HINT_WRONG
    hint = {LOSS: of_loss, OF_AN_OUTPUT: OTHER_VALUES}.get(code, NO_ROUNDING)
    digits = f"has only the digits of {short}" if short else "is wrong"
    hint = HINT_SIXTEEN.format(short) if short else hint
    made = _finding(place, judgement, f"{digits}, {times}; {_worst(judgement)}", hint, severity, code)
    return replace(made, cause=SIXTEEN_BITS) if short else made


def _code(place: Place, judgement: Judgement) -> str:
    """Where there is no float64 path, what is off by more than half of the digits is no rounding."""
    subject, is_output = place.sample.subject, judgement.value.output is not None
    has_reference = subject.reference is not None
    is_native = place.sample.is_native and place.arithmetic.name == subject.native
    if not (judgement.gross and is_native) or (is_output and not has_reference):
        return LOSS
    return OF_AN_OUTPUT if is_output else OF_A_GRADIENT[has_reference]


def not_stable(place: Place, judgement: Judgement) -> Finding:
    """More than a stable formula may lose, and not so that it is wrong without doubt.

    GV109 where the target is then not verified, else a note.
    """
    said = (
        f"is unstable: it is {number(judgement.worst)} times as far off as half of the dtype's digits "
        f"and rounded inputs explain, so that nothing more is known of it; {_worst(judgement)}"
    )
    is_open = judgement.unexplained or (place.is_stated and not place.is_brief)
    code, severity = (OPEN, Severity.WARNING) if is_open else (LOSS, Severity.NOTE)
    return _finding(place, judgement, said, HINT_UNSTABLE, severity, code)


def rounded(place: Place, judgement: Judgement, *, declared: bool) -> Finding:
    """Not correctly rounded; a note, or an error where `internals: float32` says it must be."""
    said = f"is not correctly rounded at {percent(judgement.share)} of its entries"
    if declared:
        said += ", and the spec declares `internals: float32`: something inside is rounded"
        return _finding(place, judgement, said, HINT_WRONG, Severity.ERROR)
    said += f"; rounding intermediates to {place.arithmetic.rounds_to} explains that"
    if judgement.hides:
        said += f", but a constant error of {number(100 * judgement.hides)} % could hide"
    return _finding(place, judgement, said, HINT_INTERNALS, Severity.NOTE)


def not_finite(place: Place, judgement: Judgement) -> Finding:
    """GV602: NaN or an infinity where the truth is one of the dtype."""
    largest = number(judgement.exact[judgement.lost].abs().max().item())
    places = count_of(int(judgement.lost.sum()), judgement.lost.numel())
    said = f"is not finite at {places}; the truth there is at most {largest}"
    return _finding(place, judgement, said, HINT_UNSTABLE, Severity.ERROR, "GV602")


def no_call(place: Place, call: NoCall) -> Finding | None:
    """Forward may refuse; backward must not once forward has taken it, but on purpose where nobody asked."""
    sample, error, name = place.sample, call.error, place.arithmetic.name
    kind, on_purpose = place.arithmetic.autocast_on, error is not None and error.deliberate
    if error is not None and kind and (on_purpose or not call.in_backward):
        said = f"{'backward' if call.in_backward else 'forward'} refuses autocast: {call.why}"
        return sample.finding(UNDER_AUTOCAST, said, severity=Severity.NOTE, raised=error)
    if error is not None and kind:
        on = f"`torch.autocast({kind!r}, dtype=torch.{place.arithmetic.rounds_to})`"
        said = f"forward ran under {on}, and the backward that follows raises {call.why}"
        return sample.finding(UNDER_AUTOCAST, said, hint=HINT_CASTS.format(kind=kind), raised=error)
    if error is not None and call.in_backward and (place.asked or not on_purpose):
        return backward_raised(sample, error, f" {place.arithmetic.said}, which forward accepts")
    if not place.asked:
        return None
    hint = (
        HINT_NO_AUTOCAST if kind else f"Leave {name} out of `dtypes`, or let forward and backward accept it."
    )
    return sample.finding(OPEN, f"{name} was requested and could not be judged: {call.why}", hint=hint)


def _worst(judgement: Judgement) -> str:
    """`at worst 1.054 instead of 1.004 at [16,3]`."""
    place = int(judgement.off.argmax())
    index = multi_index(place, judgement.off.shape)
    at = f" at [{','.join(map(str, index))}]" if index else ""
    values = [t.reshape(-1)[place].item() for t in (judgement.got, judgement.truth)]
    got, truth = map(number, values)
    if got == truth:
        got, truth = (f"{value:.9g}" for value in values)
    return f"at worst {got} instead of {truth}{at}"


def _entries(judgement: Judgement) -> Entries:
    """The entries furthest from the truth; all of them count as checked."""
    form, exact = judgement.form, judgement.exact
    wrong = judgement.lost | (judgement.off > 2 * form.unit * judgement.truth.abs() + form.tiny)
    got = torch.where(judgement.lost, torch.nan, judgement.got)
    got, exact, wrong = (t.reshape(-1) for t in (got, exact, wrong))
    block, of_output = Layout.of([judgement.exact]).blocks[0], judgement.value.output is not None
    return vector_entries(got, exact, form.unit * exact.abs(), wrong, block, of_output=of_output)
