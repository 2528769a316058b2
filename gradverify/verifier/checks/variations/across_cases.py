"""GV408: calls of different cases overlap, as the layers of one model do.

What a Function keeps on the class and not on ctx shows at once where two calls differ in it. A size or an
option is the same in every call of one case: only a call of another case overwrites it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, pairwise

from gradverify.model import ACROSS_CASES, Finding, RaisedError, Severity, Swept
from gradverify.verifier.checks.subject import Sample, first_line
from gradverify.verifier.checks.variations.repetition import STATE_HINT
from gradverify.verifier.checks.variations.running import Call, backward, called
from gradverify.verifier.checks.variations.variation import Varied
from gradverify.verifier.checks.variations.verified import Verified, verified
from gradverify.verifier.guard import Raised

MOST_CASES = 12
"""Cases that overlap in a row."""


def overlapping_cases(samples: Iterable[Sample]) -> Varied:
    """Forward of a case between forward and backward of the one before it and of the one after it.

    The gradients are those of the calls by themselves. Of two values in a row each is overwritten by the
    other: it may be that only one of them does harm.
    """
    alone = [base for base in map(_verified, samples) if base is not None][:MOST_CASES]
    if len(alone) < 2:
        return Varied()
    swept = Swept(calls=("interleaved with other cases",))
    refused: tuple[Finding, ...] = ()
    for base, later in chain(_in_a_row(alone), _in_a_row(alone[::-1])):
        finding = _overlapped(base, later)
        if finding is not None and finding.severity is Severity.ERROR:
            return Varied((finding,), swept)
        refused = refused or (() if finding is None else (finding,))
    return Varied(refused, swept)


def _in_a_row(cases: list[Verified]) -> Iterator[tuple[Verified, Verified]]:
    return pairwise([*cases, cases[0]])


def _overlapped(base: Verified, later: Verified) -> Finding | None:
    call = called(base.sample)
    if isinstance(call, Raised) or isinstance(called(later.sample), Raised):
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
