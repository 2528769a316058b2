"""GV408: calls of different cases overlap, as the layers of one model do.

What a Function keeps on the class and not on ctx shows at once where two calls differ in it. A size or an
option is the same in every call of one case: only a call of another case overwrites it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, pairwise

from gradverify.model import ACROSS_CASES, Finding, Severity, Swept
from gradverify.rules import rule
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.variations.call import called
from gradverify.verifier.variations.repetition import STATE_HINT
from gradverify.verifier.variations.variation import Variant, Varied
from gradverify.verifier.variations.verified import Verified, verified

MOST_CASES = 12
"""Cases that overlap in a row."""

OVERLAPPED = Variant(
    "GV408",
    "after forward was called with other sizes or options",
    STATE_HINT,
    "; the calls share something",
    part=ACROSS_CASES,
)


def overlapping_cases(samples: Iterable[Sample], unlisted: Iterable[Sample] = ()) -> Varied:
    """Forward of a case between forward and backward of the one before it and of the one after it.

    The gradients are those of the calls by themselves. Of two values in a row each is overwritten by the
    other: it may be that only one of them does harm. A size that a spec gives one value is the same in all
    of them; of `unlisted` cases, at other sizes, forward alone is called, and what comes of it is no error.
    """
    alone = [base for base in map(verified, samples) if base is not None][:MOST_CASES]
    if not alone:
        return Varied()
    swept, findings = Swept(), []
    if len(alone) > 1:
        swept = Swept(calls=("interleaved with other cases",))
        pairs = chain(pairwise([*alone, alone[0]]), pairwise([*alone[::-1], alone[-1]]))
        for base, later in pairs:
            finding = _overlapped(base, later.sample)
            if finding is not None and finding.severity is Severity.ERROR:
                return Varied((finding,), swept)
            findings += [] if finding is None else [finding]
    errors = ((_overlapped(alone[0], other), other) for other in unlisted)
    doubted = [_unlisted(f, other) for f, other in errors if f is not None and f.severity is Severity.ERROR]
    return Varied((*findings[:1], *doubted[:1]), swept)


def _unlisted(finding: Finding, other: Sample) -> Finding:
    """What a call at sizes that no spec lists leaves behind: inconclusive."""
    said = finding.message.replace("with other sizes or options", f"at {other.case.id}")
    return replace(
        finding,
        code="GV109",
        severity=rule("GV109").severity,
        message=f"{said}; no spec lists such sizes",
        hint=f"{STATE_HINT} List these sizes, if they are valid: then this is an error (GV408).",
    )


def _overlapped(base: Verified, later: Sample) -> Finding | None:
    """Backward works where its call is alone: whatever it raises now is no refusal of these inputs."""
    call = called(base.sample)
    if isinstance(call, Raised) or isinstance(called(later), Raised):
        return None
    found = OVERLAPPED.gradient(base, call.value)
    if found is None or isinstance(found, Finding):
        return found
    return OVERLAPPED.raised(base, found, serious=not found.deliberate)
