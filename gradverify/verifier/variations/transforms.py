"""What torch's transforms make of a verified sample: the capability table and what is wrong in it.

Only where the first order is verified: each transform is then held against the verified gradient.
"""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass

from gradverify.model import TargetKind
from gradverify.verifier.checks.result import CheckResult, FirstOrder, outcome_of
from gradverify.verifier.checks.subject import Sample, Subject
from gradverify.verifier.variations.compiled import compiled
from gradverify.verifier.variations.forward_mode import forward_mode
from gradverify.verifier.variations.functional import functional
from gradverify.verifier.variations.opcheck import registration
from gradverify.verifier.variations.variation import Answer
from gradverify.verifier.variations.verified import Verified, verified
from gradverify.verifier.variations.vmap import batched


@dataclass(frozen=True)
class _Transform:
    name: str
    """In the capability table."""
    code: str
    run: Callable[[Verified, FirstOrder], Answer]
    on_request: bool = False
    """Only where it is selected by its whole code: torch's compiler has mistakes of its own."""


_TRANSFORMS = (
    _Transform("jvp", "GV501", forward_mode),
    _Transform("vmap", "GV502", lambda base, _: batched(base)),
    _Transform("func", "GV505", lambda base, _: functional(base)),
    _Transform("compile", "GV503", lambda base, _: compiled(base), on_request=True),
    _Transform("opcheck", "GV504", lambda base, _: registration(base)),
)

COMPILE = re.compile(r"\btorch\.compile\b")
"""Where a module's source has this, its Functions run compiled, and are tried so by default."""

TRANSFORM_CODES = frozenset(t.code for t in _TRANSFORMS)
"""Codes that only a transform can give."""


def transforms(sample: Sample, first: FirstOrder) -> CheckResult:
    """Run every transform that is asked for on a verified sample.

    A module is left out: its parameters are no arguments of its call. So is a target whose gradient is
    deliberately not the derivative, and a point with nothing to differentiate.
    """
    subject = sample.subject
    wanted = [t for t in _TRANSFORMS if _is_asked(t, subject)]
    is_module = subject.target.kind is TargetKind.MODULE
    if is_module or subject.short or subject.surrogate is not None or not first.verified or not wanted:
        return CheckResult()
    base = verified(sample)
    if base is None:
        return CheckResult()
    answers = [(t.name, t.run(base, first)) for t in wanted]
    findings = tuple(f for _, answer in answers for f in answer.findings)
    capabilities = tuple((name, answer.capability) for name, answer in answers)
    return CheckResult(findings, outcome_of(findings), capabilities=capabilities)


def _is_asked(transform: _Transform, subject: Subject) -> bool:
    settings = subject.settings
    if any(transform.code.startswith(prefix) for prefix in settings.ignore):
        return False
    if transform.code in settings.select:
        return True
    if transform.on_request and (settings.select or not _compiles(subject)):
        return False
    return not settings.select or any(transform.code.startswith(prefix) for prefix in settings.select)


def _compiles(subject: Subject) -> bool:
    """Whether the source of the target's module itself speaks of torch.compile."""
    module = sys.modules.get(getattr(subject.function_class, "__module__", ""))
    lines = linecache.getlines(getattr(module, "__file__", None) or "")
    return any(COMPILE.search(line) for line in lines)
