"""A target under `torch.autocast`, as training calls it (GV603): one more arithmetic.

Forward inside, backward after it, inputs in float32, grad_outputs in the dtype that forward gave; what it is
held to is the rounding of the dtype that autocast casts to, and a forward that raises refuses.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.amp import autocast_mode

from gradverify.model import Closeness, Effort, Engine, Outcome, Precision, Swept
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised
from gradverify.verifier.guard.devices import kind_of
from gradverify.verifier.questions.dtypes.asked import DEFAULT, arithmetics_of, in_arithmetic, together
from gradverify.verifier.questions.dtypes.calls import Arithmetic
from gradverify.verifier.questions.dtypes.words import UNDER_AUTOCAST
from gradverify.verifier.questions.result import CheckResult
from gradverify.verifier.questions.subject import Sample, Subject

CAPABILITY = "autocast"

SIXTEEN_BITS = ("bfloat16", "float16")
"""The dtypes to which `torch.autocast` casts."""


def autocast(sample: Sample) -> CheckResult:
    """Judge a sample under autocast to the dtypes that are listed, else to the one that its device has."""
    asked = is_asked(sample.subject)
    under = arithmetics(sample.subject)
    result = together(in_arithmetic(sample, a, asked=asked) for a in under)
    known = any(row.closeness is not Closeness.UNKNOWN for row in result.swept.precision)
    said = "yes" if known else "no" if any(f.code == UNDER_AUTOCAST for f in result.findings) else ""
    said = "wrong" if result.outcome is Outcome.FAILED else said
    if result.outcome is Outcome.PASSED and said != "yes":
        result = replace(result, outcome=Outcome.NOT_RUN)
    return replace(result, capabilities=((CAPABILITY, said),) if said else ())


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
    if not meant or any(UNDER_AUTOCAST.startswith(prefix) for prefix in settings.ignore):
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
