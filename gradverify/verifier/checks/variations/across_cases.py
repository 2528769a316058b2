"""GV408: calls of different cases overlap, as the layers of one model do.

What a Function keeps on the class and not on ctx shows at once where two calls differ in it. A size or an
option is the same in every call of one case: only a call of another case overwrites it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gradverify.model import ACROSS_CASES, Finding, RaisedError, Severity, Swept
from gradverify.verifier.checks.subject import Sample, first_line
from gradverify.verifier.checks.variations.repetition import STATE_HINT
from gradverify.verifier.checks.variations.running import Call, backward, called
from gradverify.verifier.checks.variations.variation import Varied
from gradverify.verifier.checks.variations.verified import Verified, verified
from gradverify.verifier.guard import Raised

MOST_CASES = 12
"""Cases whose graphs are kept at once."""


def overlapping_cases(samples: Iterable[Sample]) -> Varied:
    """Forward of every case, then backward of each: the gradients are those of the calls by themselves."""
    alone = [base for base in map(_verified, samples) if base is not None][:MOST_CASES]
    calls = [(base, called(base.sample)) for base in alone]
    overlapping: list[tuple[Verified, Call]] = [
        (base, call.value) for base, call in calls if not isinstance(call, Raised)
    ]
    if len(overlapping) < 2:
        return Varied()
    findings = [f for f in (_finding(base, call) for base, call in overlapping) if f is not None]
    worst = sorted(findings, key=lambda f: f.severity is not Severity.ERROR)[:1]
    return Varied(tuple(worst), Swept(calls=("interleaved with other cases",)))


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
