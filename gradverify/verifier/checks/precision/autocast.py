"""GV603: the target under `torch.autocast`, as training calls it: forward inside, backward after it.

Inputs are float32, grad_outputs have the dtype that forward gave. The truth is what native dtypes are held
against, the noise that of the dtype that autocast casts to. A forward that raises there refuses: nobody
trains with it by mistake.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch.amp import autocast_mode

from gradverify.model import Closeness, Effort, Engine, Finding, Outcome, Precision, Severity, Swept
from gradverify.verifier import guard
from gradverify.verifier.checks.precision import telling
from gradverify.verifier.checks.precision.accusing import accused, lost, row_of
from gradverify.verifier.checks.precision.arithmetic import AUTOCAST, under_autocast
from gradverify.verifier.checks.precision.judging import Judgement, judge_call
from gradverify.verifier.checks.precision.native import NativeCall, NoCall
from gradverify.verifier.checks.precision.place import Place
from gradverify.verifier.checks.precision.truth import Strategy
from gradverify.verifier.checks.result import CheckResult, outcome_of
from gradverify.verifier.checks.subject import Sample, Subject
from gradverify.verifier.checks.wording import output_name
from gradverify.verifier.devices import kind_of
from gradverify.verifier.guard import Raised

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
    settings = subject.settings
    return settings.autocast or CODE in settings.select


def is_judged(subject: Subject) -> bool:
    """Whether it is judged: where it is asked for, and where forward says that autocast is meant."""
    settings = subject.settings
    if any(CODE.startswith(prefix) for prefix in settings.ignore):
        return False
    if is_asked(subject):
        return True
    cheap = settings.effort is Effort.QUICK or settings.engine is Engine.TORCH
    return not cheap and _declares(subject)


def not_judged(subject: Subject, reason: str) -> CheckResult:
    """Say why it is not, where it was asked for."""
    asked = is_asked(subject) and is_judged(subject)
    rows = [Precision(_named(d), "", Closeness.UNKNOWN, reason=reason) for d in _dtypes(subject) if asked]
    return CheckResult(outcome=Outcome.NOT_RUN, swept=Swept(precision=tuple(rows)))


def autocast(sample: Sample, truth: Strategy) -> CheckResult:
    """Judge a sample under autocast to the dtypes that are listed, else to the one that its device has."""
    subject = sample.subject
    findings: list[Finding] = []
    rows: list[Precision] = []
    answers = []
    kind = kind_of(subject.settings.device)
    for dtype in _dtypes(subject) if is_judged(subject) else ():
        place = Place.typical(sample, truth, under_autocast(kind, dtype), asked=is_asked(subject))
        call = place.call()
        answer, found, judged = _refused(place, call) if isinstance(call, NoCall) else _judged(place, call)
        findings += [_in_words_of_autocast(f, kind) for f in found]
        rows += judged
        answers.append(answer)
    said = next((a for a in ("wrong", "no", "yes") if a in answers), "")
    outcome = outcome_of(findings)
    if not answers or (outcome is Outcome.PASSED and said != "yes"):
        outcome = Outcome.NOT_RUN
    if outcome in {Outcome.NOT_RUN, Outcome.PASSED} and any(f.code == "GV109" for f in findings):
        outcome = Outcome.INCONCLUSIVE
    return CheckResult(
        tuple(findings),
        outcome,
        swept=Swept(precision=tuple(rows)),
        capabilities=((CAPABILITY, said),) if said else (),
    )


def _judged(place: Place, call: NativeCall) -> tuple[str, list[Finding], list[Precision]]:
    """The answer, findings and rows of a call that ran."""
    truth = place.truth.of(call, place.seed)
    if isinstance(truth, str):
        return _unknown(place, truth)
    findings = list(_other_dtypes(place, call))
    rows = []
    for judgement in judge_call(call, truth):
        made = list(_findings_of(place, judgement))
        findings += made
        rows.append(row_of(place, judgement, made))
    wrong = any(f.severity is Severity.ERROR for f in findings)
    known = any(row.closeness is not Closeness.UNKNOWN for row in rows)
    return "wrong" if wrong else "yes" if known else "", findings, rows


def _findings_of(place: Place, judgement: Judgement) -> Iterator[Finding]:
    """What there is to say of one value; that something was rounded is what autocast is for."""
    made = lost(place, judgement) if judgement.lost.any() else None
    if made is not None:
        yield made
    elif judgement.closeness is Closeness.WRONG:
        yield from accused(place, judgement)
    elif judgement.closeness is Closeness.UNKNOWN and place.asked:
        yield telling.unknown(place.where, judgement)


def _refused(place: Place, call: NoCall) -> tuple[str, list[Finding], list[Precision]]:
    """A call that raised: forward refuses; backward must not, once forward has taken it."""
    error = call.error
    if error is None:
        return _unknown(place, call.why)
    on = f"`torch.autocast({place.arithmetic.autocast_on!r}, dtype=torch.{place.arithmetic.rounds_to})`"
    row = Precision(place.arithmetic.name, "", Closeness.UNKNOWN, reason=call.why)
    if not call.in_backward or error.deliberate:
        part = "backward" if call.in_backward else "forward"
        note = place.sample.finding(
            CODE, f"{part} refuses autocast: {call.why}", hint="", severity=Severity.NOTE, raised=error
        )
        return "no", [note], [row]
    finding = place.sample.finding(
        CODE,
        f"forward ran under {on}, and the backward that follows raises {call.why}",
        hint=HINT_RAISES.format(kind=place.arithmetic.autocast_on),
        raised=error,
    )
    return "wrong", [finding], [replace(row, closeness=Closeness.WRONG)]


def _unknown(place: Place, why: str) -> tuple[str, list[Finding], list[Precision]]:
    row = Precision(place.arithmetic.name, "", Closeness.UNKNOWN, reason=why)
    return "", [telling.refused(place.where, why)] if place.asked else [], [row]


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
    hint = HINT_WRONG.format(kind=kind) if finding.hint == telling.HINT_WRONG else finding.hint
    return replace(finding, code=CODE, hint=hint)


def _dtypes(subject: Subject) -> tuple[str, ...]:
    """The listed ones of 16 bits, else the one that autocast of this device casts to."""
    listed = tuple(d for d in subject.dtypes if d in AUTOCAST)
    if listed:
        return listed
    own = guard.call(torch.get_autocast_dtype, kind_of(subject.settings.device))
    name = "" if isinstance(own, Raised) else str(own.value).removeprefix("torch.")
    return (name,) if name in AUTOCAST else AUTOCAST[:1]


def _named(dtype: str) -> str:
    return under_autocast("cpu", dtype).name


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
