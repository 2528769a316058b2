"""From judgements to findings (GV601, GV602, GV603): an error only once it has repeated itself elsewhere.

A target that was verified in float64 is judged in its native dtypes beside it. Under `torch.autocast` it is
called as training calls it: forward inside, backward after it, inputs in float32, grad_outputs in the dtype
that forward gave; the noise is that of the dtype that autocast casts to, and a forward that raises refuses.

At second order without a float64 path, the double backward in its dtype is held against the composite's in
float64, at one grad_output; the tolerance is what no formula may lose of the gradients' gradient. Where
there is no composite, nothing can be said.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.amp import autocast_mode

from gradverify.model import (
    Closeness,
    Effort,
    Engine,
    Finding,
    Outcome,
    Precision,
    RaisedError,
    Severity,
    Swept,
)
from gradverify.verifier import guard
from gradverify.verifier.checks.composite import Composite, NoComposite
from gradverify.verifier.checks.precision import judging
from gradverify.verifier.checks.precision.judging import FAR, Judgement, judge_call
from gradverify.verifier.checks.precision.native import (
    AUTOCAST,
    INSIDE_DRAWS,
    MOVES,
    NativeCall,
    NoCall,
    allowed_error,
    plainly,
    under_autocast,
    values_of,
)
from gradverify.verifier.checks.precision.truth import (
    FromNative,
    Place,
    Strategy,
    Verified,
    jacobians_beside,
    places_of,
)
from gradverify.verifier.checks.result import CheckResult, FirstOrder, outcome_of
from gradverify.verifier.checks.second_order import compare_second_order, graph_alone
from gradverify.verifier.checks.subject import Sample, Subject
from gradverify.verifier.checks.wording import output_name
from gradverify.verifier.devices import kind_of
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.native_values import NATIVE
from gradverify.verifier.numerics.calling import with_zeros
from gradverify.verifier.numerics.native_rounding import format_of
from gradverify.verifier.numerics.probes import random_signs
from gradverify.verifier.numerics.problem import Layout, VjpProblem
from gradverify.verifier.numerics.round_off import erring
from gradverify.verifier.numerics.verdict import Judged

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
        found = _lost(place, judgement)
        # Nobody asked for such values in this dtype: it matters where plain torch does better.
        if place.asked or place.declared or found.severity is Severity.WARNING:
            yield found
        return
    plainly = place.declared and not place.arithmetic.autocast_on
    if judgement.closeness is Closeness.WRONG:
        yield from _wrong(place, judgement)
    elif judgement.closeness is Closeness.UNKNOWN and place.asked and place.declared:
        yield judging.unknown(place.where, judgement)
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
    yield judging.unstable(place.where, judgement, severities[not place.asked])


def _rounded(place: Place, judgement: Judgement) -> Iterator[Finding]:
    declared = _rounds_once(place)
    if not declared or _repeats(place, judgement):
        yield judging.rounded(place.where, judgement, declared=declared)
    rounding = judgement.rounding
    if rounding is not None and rounding.has_outliers and not judgement.excused_by:
        yield judging.outliers(place.where, judgement)


def _wrong(place: Place, judgement: Judgement) -> Iterator[Finding]:
    """GV601: more is lost than rounding explains, once it has repeated itself elsewhere."""
    open_still = judgement.unstable and not (judgement.sure and place.is_stated)
    if not open_still and not _repeats(place, judgement):
        if _rounds_once(place) and judgement.rounding is not None:
            yield from _rounded(place, replace(judgement, closeness=Closeness.ROUNDED))
        elif place.asked and place.declared and not place.briefly:
            yield judging.unrepeated(place.where, judgement)
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
            yield judging.not_stable(place.where, judgement, open_target=open_target)
    elif place.declared and judgement.sure and not as_bad:
        yield judging.wrong(place.where, judgement, Severity.ERROR)
    elif (place.asked and place.declared) or (not place.declared and not as_bad):
        yield judging.wrong(place.where, judgement, Severity.WARNING)


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
    theirs_is = name if judgement.value.output is not None else f"what torch derives of {name}"
    said = "" if kept is None else f"{theirs_is} {place.arithmetic.said} {is_finite}"
    return judging.not_finite(place.where, judgement, severity, composite=said)


def _composite_is_as_bad(place: Place, judgement: Judgement) -> bool:
    """Whether the composite, run in the native dtype, is wrong there too: it overflows inside as well."""
    theirs, _ = _of_composite(place, for_gradients=judgement.value.output is None)
    truth = "" if theirs is None else place.truth.of(theirs, place.seed)
    if theirs is None or isinstance(truth, str):
        return False
    for judged, derived in zip(place.judge(theirs, truth), truth.values, strict=False):
        if judged.value.name == judgement.value.name:
            # Where torch derives no number in float64 either, it is no matter of digits.
            lost = judged.lost & derived.isfinite() if judged.lost.shape == derived.shape else judged.lost
            return judged.closeness is Closeness.WRONG or bool(lost.any())
    return False


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
            findings += [judging.refused(place.where, judged)] if asked else []
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
    return not bool((got - exact).abs().max() <= GROSS * exact.abs().max())


CODE = "GV603"

CAPABILITY = "autocast"

HINT_RAISES = (
    'Decorate forward with torch.amp.custom_fwd(device_type="{kind}") and backward with '
    'torch.amp.custom_bwd(device_type="{kind}"): autocast is then on in backward too. With '
    "`cast_inputs=torch.float32` both compute in float32."
)

HINT_WRONG = (
    'What must not be cast needs torch.amp.custom_fwd(device_type="{kind}", cast_inputs=torch.float32) on '
    'forward and torch.amp.custom_bwd(device_type="{kind}") on backward, or an explicit `.float()`.'
)


def is_asked(subject: Subject) -> bool:
    """Whether the run asks for autocast: by the option, or by the whole code."""
    return subject.settings.autocast or CODE in subject.settings.select


def is_judged(subject: Subject) -> bool:
    """Whether it is judged: where it is asked for, and where forward says that autocast is meant."""
    settings = subject.settings
    if any(CODE.startswith(prefix) for prefix in settings.ignore):
        return False
    cheap = settings.effort is Effort.QUICK or settings.engine is Engine.TORCH
    return is_asked(subject) or (not cheap and _declares(subject))


def autocast_not_judged(subject: Subject, reason: str) -> CheckResult:
    """Say why it is not, where it was asked for."""
    names = [under_autocast("cpu", dtype).name for dtype in _dtypes(subject)]
    asked = is_asked(subject) and is_judged(subject)
    rows = [Precision(name, "", Closeness.UNKNOWN, reason=reason) for name in names if asked]
    return CheckResult(outcome=Outcome.NOT_RUN, swept=Swept(precision=tuple(rows)))


def autocast(sample: Sample, truth: Strategy) -> CheckResult:
    """Judge a sample under autocast to the dtypes that are listed, else to the one that its device has."""
    subject = sample.subject
    kind = kind_of(subject.settings.device)
    judged = [
        _judged(Place.typical(sample, truth, under_autocast(kind, dtype), asked=is_asked(subject)))
        for dtype in (_dtypes(subject) if is_judged(subject) else ())
    ]
    findings = tuple(_in_words_of_autocast(f, kind) for found, _, _ in judged for f in found)
    rows = tuple(row for _, found, _ in judged for row in found)
    answers = {answer for _, _, answer in judged}
    said = next((a for a in ("wrong", "no", "yes") if a in answers), "")
    outcome = outcome_of(findings)
    if outcome is Outcome.PASSED and said != "yes":
        outcome = Outcome.NOT_RUN
    if outcome is not Outcome.FAILED and any(f.code == "GV109" for f in findings):
        outcome = Outcome.INCONCLUSIVE
    capabilities = ((CAPABILITY, said),) if said else ()
    return CheckResult(findings, outcome, swept=Swept(precision=rows), capabilities=capabilities)


_Judged = tuple[list[Finding], list[Precision], str]
"""Findings, rows of the table, and the line of the capability table; empty where nothing is known."""


def _judged(place: Place) -> _Judged:
    call = place.call()
    if isinstance(call, NoCall) and call.error is not None:
        return _raised(place, call, call.error)
    truth = call.why if isinstance(call, NoCall) else place.truth.of(call, place.seed)
    if isinstance(call, NoCall) or isinstance(truth, str):
        row = Precision(place.arithmetic.name, "", Closeness.UNKNOWN, reason=str(truth))
        return [judging.refused(place.where, str(truth))] if place.asked else [], [row], ""
    findings, rows = list(_other_dtypes(place, call)), []
    for judgement in judge_call(call, truth):
        made = list(findings_of(place, judgement))
        findings += made
        rows.append(row_of(place, judgement, made))
    wrong = any(f.severity is Severity.ERROR for f in findings)
    known = any(row.closeness is not Closeness.UNKNOWN for row in rows)
    return findings, rows, "wrong" if wrong else "yes" if known else ""


def _raised(place: Place, call: NoCall, error: RaisedError) -> _Judged:
    """Forward may refuse; backward must not, once forward has taken it."""
    row = Precision(place.arithmetic.name, "", Closeness.UNKNOWN, reason=call.why)
    if not call.in_backward or error.deliberate:
        said = f"{'backward' if call.in_backward else 'forward'} refuses autocast: {call.why}"
        return [place.sample.finding(CODE, said, severity=Severity.NOTE, raised=error)], [row], "no"
    kind = place.arithmetic.autocast_on
    on = f"`torch.autocast({kind!r}, dtype=torch.{place.arithmetic.rounds_to})`"
    said = f"forward ran under {on}, and the backward that follows raises {call.why}"
    finding = place.sample.finding(CODE, said, hint=HINT_RAISES.format(kind=kind), raised=error)
    return [finding], [replace(row, closeness=Closeness.WRONG)], "wrong"


def _other_dtypes(place: Place, call: NativeCall) -> Iterator[Finding]:
    """Outputs of 16 bits that are not those of autocast: the next layer gets them so."""
    others = {getattr(torch, name) for name in AUTOCAST} - {call.dtype}
    for position, given in zip(call.problem.output_positions, call.cotangents, strict=True):
        if given.dtype in others:
            name = output_name(position, place.sample.outputs_returned)
            dtype = str(given.dtype).removeprefix("torch.")
            yield place.sample.finding(
                CODE,
                f"{name} has dtype {dtype} {place.arithmetic.said}, with inputs in float32",
                hint="Use the dtype of the inputs, or torch.get_autocast_dtype(x.device.type).",
                output=position,
                severity=Severity.WARNING,
            )


def _in_words_of_autocast(finding: Finding, kind: str) -> Finding:
    """What native dtypes would say, under the code of autocast."""
    if finding.code not in {"GV601", "GV602"}:
        return finding
    hint = HINT_WRONG.format(kind=kind) if finding.hint == judging.HINT_WRONG else finding.hint
    return replace(finding, code=CODE, hint=hint)


def _dtypes(subject: Subject) -> tuple[str, ...]:
    """The listed ones of 16 bits, else the one that autocast of this device casts to."""
    listed = tuple(d for d in subject.dtypes if d in AUTOCAST)
    if listed:
        return listed
    own = guard.call(torch.get_autocast_dtype, kind_of(subject.settings.device))
    name = "" if isinstance(own, Raised) else str(own.value).removeprefix("torch.")
    return (name,) if name in AUTOCAST else AUTOCAST[:1]


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


WEIGHTS_SEED = 211
"""Added to a case's seed for the weights of the gradients; any other would do."""

_NOT_RUN = CheckResult(outcome=Outcome.NOT_RUN)


def second_order_natively(sample: Sample) -> CheckResult:
    """What its double backward gives; `not-run` where there is nothing to hold it against."""
    found = graph_alone(sample)
    if found.outcome is not Outcome.NOT_RUN or found.capability:
        return found
    pair = _problems(sample)
    beyond = math.nan if pair is None else _beyond(*pair, sample.case.seed)
    if pair is None or math.isnan(beyond) or 1 < beyond <= FAR:
        return _NOT_RUN
    if beyond <= 1:
        return CheckResult(capability="yes")
    judged = jacobians_beside(*pair)
    if not isinstance(judged, Judged):
        return _NOT_RUN
    result = compare_second_order(sample, pair[0], judged, FirstOrder(CheckResult()))
    # What is beyond half of the digits in single entries alone, and not as a whole, is no finding.
    return replace(result, uncovered={}) if result.findings else _NOT_RUN


def _problems(sample: Sample) -> tuple[VjpProblem, VjpProblem] | None:
    """The backward of the target at its native values, and that of the composite at the same in float64."""
    truth = FromNative(sample.subject)
    place = Place.typical(sample, truth, plainly(sample.subject.native), asked=True)
    call = place.call()
    if not isinstance(call, NativeCall) or isinstance(truth.of(call, place.seed), str):
        return None
    composite = truth.composite(call)
    if composite is None:
        return None
    exact = replace(composite.problem, arguments=call.exact.arguments)
    return VjpProblem(call.problem, call.cotangents), VjpProblem(exact, call.exact_cotangents)


def _beyond(mine: VjpProblem, theirs: VjpProblem, seed: int) -> float:
    """The error of a weighted gradient's gradient in units of what no formula may lose; NaN: unknown."""
    signs = random_signs(mine.outputs.size, seed + WEIGHTS_SEED)
    got, truth = _pulled_back(mine, mine.primals, signs), _pulled_back(theirs, theirs.primals, signs)
    if got is None or truth is None or not all(t.isfinite().all() for t in truth):
        return math.nan
    form = format_of(mine.first_order.outputs.blocks[0].dtype)
    generator = torch.Generator().manual_seed(seed % 2**63)
    moved = []
    for _ in range(INSIDE_DRAWS):
        run = _pulled_back(theirs, [erring(p, form.unit, generator) for p in theirs.primals], signs)
        if run is None:
            return math.nan
        moved.append(run)
    # Of numbers of order one, and of the largest of these, what rounding leaves where they cancel.
    largest = max([1.0, *(t.abs().max().item() for t in truth if t.numel())])
    worst = 0.0
    for place, (mine_is, wanted) in enumerate(zip(got, truth, strict=True)):
        if not wanted.numel():
            continue
        absorbed = torch.full_like(wanted, MOVES * form.unit * largest)
        allowed = allowed_error(wanted, absorbed, [run[place] for run in moved], form)
        ratio = ((mine_is - wanted).abs().nan_to_num(torch.inf) / allowed).max().item()
        worst = max(worst, ratio)
    return worst


def _pulled_back(problem: VjpProblem, primals: Sequence[Tensor], signs: Tensor) -> list[Tensor] | None:
    """The gradients (flat, float64) of the weighted gradients by inputs and grad_outputs; None: it raises."""
    found = problem.pull_back(primals, problem.outputs.unflatten(signs))
    if isinstance(found, Raised):
        return None
    whole = with_zeros(found.value, primals)
    return [Layout.of([p]).flatten([g]) for p, g in zip(primals, whole, strict=True)]
