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
from gradverify.verifier.checks.precision import messages
from gradverify.verifier.checks.precision.arithmetic import AUTOCAST, under_autocast
from gradverify.verifier.checks.precision.findings import findings_of, row_of
from gradverify.verifier.checks.precision.judging import judge_call
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
    return subject.settings.autocast or CODE in subject.settings.select


def is_judged(subject: Subject) -> bool:
    """Whether it is judged: where it is asked for, and where forward says that autocast is meant."""
    settings = subject.settings
    if any(CODE.startswith(prefix) for prefix in settings.ignore):
        return False
    cheap = settings.effort is Effort.QUICK or settings.engine is Engine.TORCH
    return is_asked(subject) or (not cheap and _declares(subject))


def not_judged(subject: Subject, reason: str) -> CheckResult:
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
        return [messages.refused(place.where, str(truth))] if place.asked else [], [row], ""
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
    hint = HINT_WRONG.format(kind=kind) if finding.hint == messages.HINT_WRONG else finding.hint
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
