"""A target under `torch.autocast`, as training calls it (GV603).

Forward inside, backward after it, inputs in float32, grad_outputs in the dtype that forward gave; what it is
held to is the rounding of the dtype that autocast casts to, and a forward that raises refuses.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace

import torch
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
from gradverify.verifier.checks.dtypes.asked import Found, findings_of, is_wrong, row_of, together
from gradverify.verifier.checks.dtypes.calls import Arithmetic, NativeCall, NoCall
from gradverify.verifier.checks.dtypes.places import Against, Place
from gradverify.verifier.checks.dtypes.words import HINT_WRONG
from gradverify.verifier.checks.result import CheckResult
from gradverify.verifier.checks.subject import Sample, Subject
from gradverify.verifier.checks.wording import output_name
from gradverify.verifier.devices import kind_of
from gradverify.verifier.guard import Raised

CODE = "GV603"

CAPABILITY = "autocast"

SIXTEEN_BITS = ("bfloat16", "float16")
"""The dtypes to which `torch.autocast` casts."""

HINT_RAISES = (
    'Decorate forward with torch.amp.custom_fwd(device_type="{kind}") and backward with '
    'torch.amp.custom_bwd(device_type="{kind}"): autocast is then on in backward too. With '
    "`cast_inputs=torch.float32` both compute in float32."
)

HINT_OF_CASTS = (
    'What must not be cast needs torch.amp.custom_fwd(device_type="{kind}", cast_inputs=torch.float32) on '
    'forward and torch.amp.custom_bwd(device_type="{kind}") on backward, or an explicit `.float()`.'
)


def autocast(sample: Sample, against: Against) -> CheckResult:
    """Judge a sample under autocast to the dtypes that are listed, else to the one that its device has."""
    subject = sample.subject
    kind = kind_of(subject.settings.device)
    judged = [
        _judged(Place.typical(sample, against, Arithmetic("float32", d, kind), asked=is_asked(subject)))
        for d in (_dtypes(subject) if _is_judged(subject) else ())
    ]
    result = together([(_in_words_of_autocast(found, kind), rows) for found, rows, _ in judged])
    answers = {answer for _, _, answer in judged}
    said = next((a for a in ("wrong", "no", "yes") if a in answers), "")
    if result.outcome is Outcome.PASSED and said != "yes":
        result = replace(result, outcome=Outcome.NOT_RUN)
    return replace(result, capabilities=((CAPABILITY, said),) if said else ())


def autocast_not_judged(subject: Subject, reason: str) -> CheckResult:
    """Say why it is not, where it was asked for."""
    asked = is_asked(subject) and _is_judged(subject)
    names = [f"autocast {dtype}" for dtype in _dtypes(subject) if asked]
    rows = tuple(Precision(name, "", Closeness.UNKNOWN, reason=reason) for name in names)
    return CheckResult(outcome=Outcome.NOT_RUN, swept=Swept(precision=rows))


def is_asked(subject: Subject) -> bool:
    """Whether the run asks for autocast: by the option, or by the whole code."""
    return subject.settings.autocast or CODE in subject.settings.select


def _is_judged(subject: Subject) -> bool:
    """Whether it is judged: where it is asked for, and where forward says that autocast is meant."""
    settings = subject.settings
    if any(CODE.startswith(prefix) for prefix in settings.ignore):
        return False
    cheap = settings.effort is Effort.QUICK or settings.engine is Engine.TORCH
    return is_asked(subject) or (not cheap and _declares(subject))


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


def _dtypes(subject: Subject) -> tuple[str, ...]:
    """The listed ones of 16 bits, else the one that autocast of this device casts to."""
    listed = tuple(d for d in subject.dtypes if d in SIXTEEN_BITS)
    if listed:
        return listed
    own = guard.call(torch.get_autocast_dtype, kind_of(subject.settings.device))
    name = "" if isinstance(own, Raised) else str(own.value).removeprefix("torch.")
    return (name,) if name in SIXTEEN_BITS else SIXTEEN_BITS[:1]


def _judged(place: Place) -> tuple[*Found, str]:
    """Findings, rows, and the line of the capability table; empty where nothing is known."""
    call = place.call()
    if isinstance(call, NoCall) and call.error is not None:
        return _raised(place, call, call.error)
    truth = call.why if isinstance(call, NoCall) else place.against.at(call)
    if isinstance(call, NoCall) or isinstance(truth, str):
        row = Precision(place.arithmetic.name, "", Closeness.UNKNOWN, reason=str(truth))
        return [place.where.refused(str(truth))] if place.asked else [], [row], ""
    findings, rows = list(_other_dtypes(place, call)), []
    for judgement in place.judge(call, truth):
        made = list(findings_of(place, judgement))
        findings += made
        rows.append(row_of(place, judgement, made))
    known = any(row.closeness is not Closeness.UNKNOWN for row in rows)
    return findings, rows, "wrong" if is_wrong(findings) else "yes" if known else ""


def _raised(place: Place, call: NoCall, error: RaisedError) -> tuple[*Found, str]:
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
    others = {getattr(torch, name) for name in SIXTEEN_BITS} - {call.arithmetic.dtype}
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


def _in_words_of_autocast(findings: list[Finding], kind: str) -> list[Finding]:
    """What native dtypes would say, under the code of autocast."""
    hint = HINT_OF_CASTS.format(kind=kind)
    return [
        replace(f, code=CODE, hint=hint if f.hint == HINT_WRONG else f.hint)
        if f.code in {"GV601", "GV602"}
        else f
        for f in findings
    ]
