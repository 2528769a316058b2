"""Native dtypes, from judgements to findings: one loop over arithmetics and the places of each.

A dtype is judged at typical values, in the declared range with its ends, and at special values. Beside
float64 the truth is the verified gradient at the rounded inputs (GV102, GV601, GV602). An error is one where
torch's own operations are not as bad in that dtype.

`torch.autocast`, as training calls a target (GV603), is one more arithmetic: forward inside, backward after
it, inputs in float32, grad_outputs in the dtype that forward gave. It is held to the rounding of the dtype
that autocast casts to, and a forward that raises refuses.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch.amp import autocast_mode

from gradverify.model import (
    Case,
    Closeness,
    Effort,
    Engine,
    Entries,
    Finding,
    Outcome,
    Point,
    Precision,
    Severity,
    Swept,
    TensorInput,
    tensors_of,
)
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised
from gradverify.verifier.guard.devices import kind_of
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.inputs.native_values import NATIVE
from gradverify.verifier.inputs.values import interval_of
from gradverify.verifier.interpreter.launches import interpreted, wrong_product
from gradverify.verifier.numerics.problem import Layout, multi_index
from gradverify.verifier.questions.dtypes.calls import (
    Arithmetic,
    NativeCall,
    NoCall,
    Truth,
    as_plain_operations,
    native_call,
    plainly,
    truth_of,
)
from gradverify.verifier.questions.dtypes.judging import (
    CERTAIN,
    Judgement,
    has_other_signs,
    judge_call,
    sixteen_bits,
)
from gradverify.verifier.questions.findings import (
    NOT_RUN,
    CheckResult,
    count_of,
    errors_of,
    is_open,
    number,
    outcome_of,
    output_name,
    percent,
    vector_entries,
)
from gradverify.verifier.questions.orders import backward_raised
from gradverify.verifier.questions.subject import Sample, Subject, exact_arguments_at, tensors_in

COTANGENT_SEED = 61
"""Added to a case's seed for its grad_outputs here."""

RANGE = "the declared range"
"""The name of values over all of it."""

NEAR = 2.0**-10
"""Share of an end, or of the range's width where that is less, within which values are near it: so near that
squares of them cancel, and ties of float32 are rare."""


@dataclass(frozen=True)
class Place:
    """One arithmetic at one set of values."""

    sample: Sample
    arithmetic: Arithmetic
    arguments: Sequence[Argument]
    """In float64."""
    asked: bool
    """The dtype was listed; float32 is judged by default."""
    values: str = ""
    """The name of a range of values; empty for those that were drawn."""

    @property
    def is_stated(self) -> bool:
        """Somebody says that this dtype, or such values, are meant: it was listed, or a range is declared."""
        return self.asked or bool(self.values) or bool(_ranges(self.sample.case))

    @property
    def is_brief(self) -> bool:
        """Rounding was measured at typical values: only what no formula may lose is looked for."""
        return bool(self.values) and not (self.asked and self.values == RANGE)

    def called(self) -> tuple[NativeCall, Truth] | NoCall:
        """A call with its truth; or why there is nothing to judge."""
        before, sample = interpreted(), self.sample
        seed = sample.case.seed + COTANGENT_SEED
        made = native_call(sample.problem, self.arguments, self.arithmetic, seed)
        if interpreted() > before and (why := wrong_product(self.arithmetic.dtype)):
            return NoCall(why)
        if isinstance(made, NoCall):
            return made
        distinct = {i.name for i in sample.case.inputs for t in tensors_of(i) if t.distinct}
        for short, given in zip(made.problem.arguments, self.arguments, strict=True):
            is_distinct = bool({given.name, given.in_list} & distinct)
            if is_distinct and short.value.unique().numel() < given.value.unique().numel():
                return NoCall("rounding its inputs makes equal what the spec says is distinct")
        truth = truth_of(sample, made)
        if isinstance(truth, str):
            return NoCall(truth)
        is_mirrored = has_other_signs(made, truth)
        return (
            NoCall("an output has other signs there, as eigenvectors may") if is_mirrored else (made, truth)
        )


def places_of(typical: Place, *, in_full: bool) -> Iterator[Place]:
    """Typical values, and what the spec declares; that no more than once for each combination of options."""
    yield typical
    sample = typical.sample
    case, subject = sample.case, sample.subject
    once = in_full and sample.is_first_draw and subject.is_first_of_options
    if not once or case.hook or subject.settings.effort is Effort.QUICK:
        return
    ranges, special = _ranges(case), any(t.special for t in tensors_in(case))
    generator = torch.Generator().manual_seed(case.seed)
    for name, of_several, point, part in _DECLARED:
        each = enumerate(ranges.items())
        parts = {n: part(*ends, k) for k, (n, ends) in each} if part is not None else {}
        wide = any(low < high for low, high in (parts or ranges).values())
        drawn = exact_arguments_at(subject, case, point, 0)
        if not (special if point is Point.SPECIAL else wide) or isinstance(drawn, Raised):
            continue
        dtype = typical.arithmetic.dtype
        moved = (_spread_over(a, parts.get(a.name, (0.0, 0.0)), generator) for a in drawn)
        arguments = tuple(_kept_inside(a, ranges.get(a.name), dtype) for a in moved)
        # A finding shows the inputs that it was made at.
        shown = replace(sample, arguments=arguments, point=point, draw=0)
        yield replace(
            typical, sample=shown, arguments=arguments, values=of_several if len(ranges) > 1 else name
        )


SMALLEST = 1e-4
"""The smallest magnitude of a range that holds zero, beside its largest one, or one where that is larger."""

DECADES = 1e3
"""Factor between the largest and the smallest magnitude of a range from which there are others inside."""


def _magnitude(low: float, high: float, _: int) -> tuple[float, float]:
    """Up to two thirds of the decades of a range that has many; nothing where it has few."""
    largest, smallest = max(abs(low), abs(high)), min(abs(low), abs(high))
    if low <= 0 <= high:
        smallest = SMALLEST * min(largest, 1.0)
    size = (largest**2 * smallest) ** (1 / 3) if largest >= DECADES * smallest else 0.0
    return max(low, -size), min(high, size)


def _near_low(low: float, high: float, number: int) -> tuple[float, float]:
    """Near the low end; every second input near its high one, or they would nearly be equal."""
    if number % 2:
        return high - NEAR * min(high - low, abs(high)), high
    return low, low + NEAR * min(high - low, abs(low))


def _near_high(low: float, high: float, number: int) -> tuple[float, float]:
    return _near_low(low, high, number + 1)


MAGNITUDE, SPECIAL = "a magnitude inside the declared range", "declared special values"

OPPOSITE = "near opposite ends of the declared ranges"

_DECLARED: tuple[tuple[str, str, Point, Callable[[float, float, int], tuple[float, float]] | None], ...] = (
    (RANGE, RANGE, Point.WIDE, None),
    ("near the low end of the declared range", OPPOSITE, Point.WIDE, _near_low),
    ("near the high end of the declared range", OPPOSITE, Point.WIDE, _near_high),
    (MAGNITUDE, MAGNITUDE, Point.WIDE, _magnitude),
    (SPECIAL, SPECIAL, Point.SPECIAL, None),
)
"""What a spec says is valid: a name, that of several inputs, the point that is drawn, and the part of a range
in which values lie."""


def _spread_over(argument: Argument, ends: tuple[float, float], generator: torch.Generator) -> Argument:
    """With values from a part of its range; as it is where that is empty."""
    if not ends[0] < ends[1]:
        return argument
    value = argument.value
    share = torch.rand(value.shape, generator=generator, dtype=value.dtype).to(value.device)
    corner = ends[0] * (1 + 1j if share.is_complex() else 1)
    return replace(argument, value=corner + (ends[1] - ends[0]) * share)


def _kept_inside(argument: Argument, ends: tuple[float, float] | None, dtype: torch.dtype) -> Argument:
    """What rounding would move out of its range one number further in."""
    value = argument.value
    if ends is None or value.is_complex():
        return argument
    short, inward = value.to(dtype).to(value.dtype), torch.finfo(dtype).eps * value.abs()
    value = torch.where(short > ends[1], value - inward, value)
    return replace(argument, value=torch.where(short < ends[0], value + inward, value))


def _ranges(case: Case) -> dict[str, tuple[float, float]]:
    """The declared ranges of floating inputs, by their name."""
    tensors = (t for t in tensors_in(case) if t.range is not None and _is_floating(t))
    drawn = (t for t in tensors if not t.structure and t.value is None and not t.make)
    return {t.name: interval_of(t, Point.WIDE) for t in drawn}


def _is_floating(spec: TensorInput) -> bool:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return dtype.is_floating_point or dtype.is_complex


LOSS, UNDER_AUTOCAST, OPEN = "GV601", "GV603", "GV109"

OF_AN_OUTPUT = "GV301"
OF_A_GRADIENT = ("GV101", "GV302")
"""Codes of what is no loss of digits: another value than the reference has, another gradient."""

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
        name = output_name(place.sample, value.output)
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
    return replace(made, cause="sixteen-bits-inside") if short else made


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


def rounded(place: Place, judgement: Judgement) -> Finding:
    """Not correctly rounded; a note, or an error where `internals: float32` says it must be."""
    said = f"is not correctly rounded at {percent(judgement.share)} of its entries"
    if place.sample.subject.internals == DEFAULT:
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
    if error is not None and kind:
        if on_purpose or not call.in_backward:
            said = f"{'backward' if call.in_backward else 'forward'} refuses autocast: {call.why}"
            return sample.finding(UNDER_AUTOCAST, said, severity=Severity.NOTE, raised=error)
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
    got, truth, wrong = (t.reshape(-1) for t in (got, exact, wrong))
    block, of_output = Layout.of([exact]).blocks[0], judgement.value.output is not None
    return vector_entries(got, truth, wrong, block, of_output=of_output, unit=form.unit)


DEFAULT = "float32"
"""What every target is judged in that runs in it, unless dtypes are listed."""


def beside_float64(sample: Sample) -> CheckResult:
    """Judge a verified sample in every dtype that is asked for."""
    asked = bool(sample.subject.dtypes)
    return together(in_arithmetic(sample, a, asked=asked, in_full=True) for a in arithmetics_of(sample))


def together(results: Iterable[CheckResult]) -> CheckResult:
    """The results of several dtypes as one."""
    return functools.reduce(CheckResult.beside, results, NOT_RUN)


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
            made = [found] if found is not None and (not rows or errors_of([found])) else []
            missing = Precision(arithmetic.name, "", Closeness.UNKNOWN, reason=called.why)
            rows += [] if rows else [row_of(missing, made)]
        else:
            for judgement in judge_call(*called, briefly=place.is_brief):
                said = list(findings_of(place, judgement, *called))
                row = Precision(
                    arithmetic.name,
                    judgement.value.name,
                    judgement.closeness,
                    judgement.worst,
                    judgement.hides,
                )
                told = errors_of(said) or not place.is_brief or (said and not sample.is_native)
                rows += [row_of(row, said)] if told else []
                made += said
        findings += made
        if errors_of(made) or (isinstance(called, NoCall) and not place.values):
            break  # what is wrong there is wrong elsewhere as well
    outcome = outcome_of(findings)
    if outcome is Outcome.PASSED and is_open(findings):
        outcome = Outcome.INCONCLUSIVE
    elif outcome is Outcome.PASSED and all(row.closeness is Closeness.UNKNOWN for row in rows):
        outcome = Outcome.NOT_RUN
    return CheckResult(tuple(findings), outcome, swept=Swept(precision=tuple(rows)))


def row_of(row: Precision, findings: Sequence[Finding]) -> Precision:
    """A line of the table; what is suspected and not proven counts as not judged."""
    suspected = Closeness.UNKNOWN if row.closeness is Closeness.WRONG else row.closeness
    return replace(row, closeness=Closeness.WRONG if errors_of(findings) else suspected)


def findings_of(place: Place, judgement: Judgement, call: NativeCall, truth: Truth) -> Iterator[Finding]:
    """What there is to say of one value; that autocast rounds is what it is for."""
    is_unstable = judgement.closeness is Closeness.UNKNOWN
    if judgement.lost.any():
        yield not_finite(place, judgement)
    elif is_unstable or judgement.closeness is Closeness.WRONG:
        theirs = _in_plain_torch(place, judgement, call, truth)
        excused = _is_excused(judgement, theirs)
        is_far = judgement.is_large and judgement.value.output is None  # forward is what it is
        # Where its operations cannot be seen, what is right at typical values may be as stable as any.
        unseen = place.is_brief and judgement.unexplained and theirs is None
        is_certain = judgement.gross and (place.is_stated or is_far) and not unseen
        if is_unstable and not is_certain:
            # Near an end a root loses half of its digits by right.
            if not excused:
                yield not_stable(place, judgement)
        elif place.asked or not excused:
            counts = not excused and (place.asked or place.sample.is_native or judgement.is_large)
            yield wrong(place, judgement, Severity.ERROR if counts else Severity.WARNING)
    elif judgement.closeness is Closeness.ROUNDED and not place.arithmetic.autocast_on:
        yield rounded(place, judgement)


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
    return tuple(
        f
        for f in errors_of(beside_float64(sample).findings)
        if f.code not in OF_A_GRADIENT or (f.case and f.case.point is Point.TYPICAL)
    )


SIXTEEN_BITS = ("bfloat16", "float16")
"""The dtypes to which `torch.autocast` casts."""


def autocast(sample: Sample) -> CheckResult:
    """Judge a sample under autocast to the dtypes that are listed, else to the one that its device has."""
    asked = is_asked(sample.subject)
    result = together(in_arithmetic(sample, a, asked=asked) for a in arithmetics(sample.subject))
    known = any(row.closeness is not Closeness.UNKNOWN for row in result.swept.precision)
    said = "yes" if known else "no" if any(f.code == UNDER_AUTOCAST for f in result.findings) else ""
    said = "wrong" if result.outcome is Outcome.FAILED else said
    if result.outcome is Outcome.PASSED and said != "yes":
        result = replace(result, outcome=Outcome.NOT_RUN)
    return replace(result, capabilities=(("autocast", said),) if said else ())


def not_judged(sample: Sample, reason: str) -> CheckResult:
    """Say of each dtype that was asked for, under autocast too, why it is not judged."""
    names = [a.name for a in arithmetics_of(sample) if sample.subject.dtypes]
    names += [a.name for a in arithmetics(sample.subject) if is_asked(sample.subject)]
    rows = tuple(Precision(name, "", Closeness.UNKNOWN, reason=reason) for name in names)
    return CheckResult(outcome=Outcome.NOT_RUN, swept=Swept(precision=rows))


def is_asked(subject: Subject) -> bool:
    """Whether the run asks for autocast: by the option, or by the whole code."""
    return subject.settings.autocast or UNDER_AUTOCAST in subject.settings.select


def arithmetics(subject: Subject) -> Sequence[Arithmetic]:
    """Of the listed dtypes of 16 bits, else of the one that autocast of this device casts to.

    None where it is not judged: neither asked for, nor does forward say that autocast is meant.
    """
    settings, kind = subject.settings, kind_of(subject.settings.device)
    cheap = settings.effort is Effort.QUICK or settings.engine is Engine.TORCH
    meant = is_asked(subject) or (not cheap and _declares(subject))
    if not meant or UNDER_AUTOCAST.startswith(settings.ignore):
        return ()
    listed = tuple(d for d in subject.dtypes if d in SIXTEEN_BITS)
    if not listed:
        own = guard.call(torch.get_autocast_dtype, kind)
        name = "" if isinstance(own, Raised) else str(own.value).removeprefix("torch.")
        listed = (name,) if name in SIXTEEN_BITS else SIXTEEN_BITS[:1]
    return tuple(Arithmetic(DEFAULT, dtype, kind) for dtype in listed)


def _declares(subject: Subject) -> bool:
    """Whether forward is decorated with `custom_fwd` for the device that is judged."""
    forward = None if subject.function_class is None else subject.function_class.forward
    while forward is not None:
        code = getattr(forward, "__code__", None)
        if code is not None and code.co_filename == autocast_mode.__file__:
            device = inspect.getclosurevars(forward).nonlocals.get("device_type")
            return bool(device == kind_of(subject.settings.device))
        forward = getattr(forward, "__wrapped__", None)
    return False
