"""GV408: calls of different cases overlap, as the layers of one model do.

What a Function keeps on the class and not on ctx shows at once where two calls differ in it. A size or an
option is the same in every call of one case: only a call of another case overwrites it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, pairwise

from gradverify.model import ACROSS_CASES, Finding, RaisedError, Severity, Swept
from gradverify.rules import rule
from gradverify.verifier.checks.subject import Sample, first_line
from gradverify.verifier.checks.variations.repetition import STATE_HINT
from gradverify.verifier.checks.variations.running import Call, backward, called
from gradverify.verifier.checks.variations.variation import Varied
from gradverify.verifier.checks.variations.verified import Verified, verified
from gradverify.verifier.guard import Raised

MOST_CASES = 12
"""Cases that overlap in a row."""


def overlapping_cases(samples: Iterable[Sample], unlisted: Iterable[Sample] = ()) -> Varied:
    """Forward of a case between forward and backward of the one before it and of the one after it.

    The gradients are those of the calls by themselves. Of two values in a row each is overwritten by the
    other: it may be that only one of them does harm. A size that a spec gives one value is the same in all
    of them; of `unlisted` cases, at other sizes, forward alone is called, and what comes of it is no error.
    """
    alone = [base for base in map(_verified, samples) if base is not None][:MOST_CASES]
    if not alone:
        return Varied()
    if len(alone) < 2:
        return _with_unlisted(alone[0], unlisted, Varied())
    swept = Swept(calls=("interleaved with other cases",))
    refused: tuple[Finding, ...] = ()
    for base, later in chain(_in_a_row(alone), _in_a_row(alone[::-1])):
        finding = _overlapped(base, later.sample)
        if finding is not None and finding.severity is Severity.ERROR:
            return Varied((finding,), swept)
        refused = refused or (() if finding is None else (finding,))
    return _with_unlisted(alone[0], unlisted, Varied(refused, swept))


def _with_unlisted(base: Verified, unlisted: Iterable[Sample], varied: Varied) -> Varied:
    """The same, and what a call at sizes that no spec lists leaves behind: inconclusive."""
    for other in unlisted:
        finding = _overlapped(base, other)
        if finding is not None and finding.severity is Severity.ERROR:
            said = finding.message.replace("with other sizes or options", f"at {other.case.id}")
            doubted = replace(
                finding,
                code="GV109",
                severity=rule("GV109").severity,
                message=f"{said}; no spec lists such sizes",
                hint=f"{STATE_HINT} List these sizes, if they are valid: then this is an error (GV408).",
            )
            return replace(varied, findings=(*varied.findings, doubted))
    return varied


def _in_a_row(cases: list[Verified]) -> Iterator[tuple[Verified, Verified]]:
    return pairwise([*cases, cases[0]])


def _overlapped(base: Verified, later: Sample) -> Finding | None:
    call = called(base.sample)
    if isinstance(call, Raised) or isinstance(called(later), Raised):
        return None
    return _finding(base, call.value)


def _verified(sample: Sample) -> Verified | None:
    return verified(sample) if sample.inputs.size and sample.problem.outputs.size else None


def _finding(base: Verified, call: Call) -> Finding | None:
    result = backward(base.sample, call, base.grad_outputs())
    if isinstance(result, Raised):
        return _raised(base, result.error)
    difference = base.difference(result.value)
    if difference is None:
        return None
    return base.finding(
        "GV408",
        f"the gradient of `{difference.name}` is wrong after forward was called with other sizes or options: "
        f"{difference.place} is {difference.values}; the calls share something",
        hint=STATE_HINT,
        input=difference.name,
        part=ACROSS_CASES,
    )


def _raised(base: Verified, error: RaisedError) -> Finding:
    """Backward works where its call is alone: whatever it raises now is no refusal of these inputs."""
    finding = base.finding(
        "GV408",
        f"backward raises {error.type} after forward was called with other sizes or options: "
        f"{first_line(error.message)}",
        hint=STATE_HINT,
        raised=error,
        part=ACROSS_CASES,
    )
    return replace(finding, severity=Severity.NOTE) if error.deliberate else finding
