"""GV408: calls that overlap, as the layers of one model do, and what an earlier call returned.

What a Function keeps on the class and not on ctx shows where two calls differ in it. A size or an option is
the same in every call of one case: only a call of another case overwrites it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from gradverify.model import ACROSS_CASES, Finding, RaisedError, Severity, Swept
from gradverify.rules import rule
from gradverify.verifier.checks.samples import another_draw
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.inputs.arguments import Argument, arguments_of_call
from gradverify.verifier.numerics.calling import Snapshot
from gradverify.verifier.questions.again import STATE_HINT
from gradverify.verifier.questions.call import Call, backward, called, is_accident
from gradverify.verifier.questions.verified import Variant, Varied, Verified, known

MOST_CASES = 12
"""Cases that overlap in a row."""

INTERLEAVED = Variant(
    "GV408", "after a second forward on other inputs", STATE_HINT, "; the calls share something"
)

CALLED_AGAIN = Variant(
    "GV408",
    "after the module was called on other inputs",
    "Keep what backward needs on ctx (save_for_backward, a clone of what is written to), not on the module: "
    "it is called again before backward wherever its weights are shared.",
    "; the calls share something",
)

OVERLAPPED = Variant(
    "GV408",
    "after forward was called with other sizes or options",
    STATE_HINT,
    "; the calls share something",
    part=ACROSS_CASES,
)


def overlapping(base: Verified) -> Varied:
    """Two further calls between forward and backward of the first; backward of one of them comes first.

    So neither the last call kept, nor the first, nor the last one that is left gives the first its own. What
    the first returned, and its gradient, stay as they are.
    """
    sample, other = base.sample, another_draw(base.sample)
    other = other if other is not None and len(other) == len(sample.arguments) else sample.arguments
    first = called(sample)
    if isinstance(first, Raised):
        return Varied()
    several = sample.outputs_returned > 1
    positions = sample.problem.output_positions
    held = {
        f"output {p} that forward" if several else "the result that forward": Snapshot.of(o.detach())
        for p, o in zip(positions, first.value.outputs, strict=True)
    }
    others = [called(sample, other), called(sample, other)]
    made = [call.value for call in others if isinstance(call, Returned)]
    found = _backwards(base, first.value, made) if len(made) == len(others) else None
    found = found or _overwritten(base, held)
    return Varied(() if found is None else (found,), Swept(calls=("interleaved", "kept gradient")))


def _backwards(base: Verified, first: Call, others: Sequence[Call]) -> Finding | None:
    backward(base.sample, others[0], [torch.ones_like(o) for o in others[0].outputs])
    result = backward(base.sample, first, base.grad_outputs())
    if isinstance(result, Raised):
        return INTERLEAVED.raised(base, result.error) if is_accident(result.error) else None
    difference = base.difference(result.value)
    if difference is not None:
        return _with_cause(base, INTERLEAVED.differs(base, difference))
    pairs = zip(base.names, result.value, strict=True)
    held = {f"the gradient of `{n}` that backward": Snapshot.of(g) for n, g in pairs if g is not None}
    backward(base.sample, others[1], [-2 * torch.ones_like(o) for o in others[1].outputs])
    return _overwritten(base, held)


def _overwritten(base: Verified, held: dict[str, Snapshot]) -> Finding | None:
    """What was returned changes where it is a buffer of the class, which the next call writes into."""
    words = next((words for words, one in held.items() if one.rewritten), None)
    if words is None:
        return None
    return base.finding(
        "GV408",
        f"{words} returned changes with the next call: that writes into the same memory",
        hint="Return a tensor of its own (clone it): what was returned is the caller's, who may keep it.",
    )


def _with_cause(base: Verified, finding: Finding) -> Finding:
    """`stale`, where the first gradient is right once the second call has the same inputs as the first."""
    first = called(base.sample)
    if isinstance(first, Raised) or isinstance(called(base.sample), Raised):
        return finding
    if INTERLEAVED.gradient(base, first.value) is not None:
        return finding
    what = "What backward uses is of the later call: with the same inputs there, it is right."
    return replace(finding, cause="stale", hint=f"{what} {STATE_HINT}")


def module_called_again(base: Verified) -> Varied:
    """One instance of a module is called on other inputs between its forward and backward."""
    other = another_draw(base.sample)
    if base.sample.subject.again is None or other is None or len(other) != len(base.sample.arguments):
        return Varied()
    found = _of_one_module(base, other)
    return Varied(() if found is None else (found,), Swept(calls=("one module twice",)))


def _of_one_module(base: Verified, other: Sequence[Argument]) -> Finding | None:
    """What is wrong then. Where it refuses, as after a write into what it saved, nothing is yet."""
    sample = base.sample
    if sample.subject.again is None:
        return None
    function = sample.subject.again(arguments_of_call(other, [a.value for a in other]))
    call = called(replace(sample, problem=replace(sample.problem, function=function)))
    found = call.error if isinstance(call, Raised) else CALLED_AGAIN.gradient(base, call.value)
    return found if isinstance(found, Finding) else None


def overlapping_cases(samples: Iterable[Sample], unlisted: Iterable[Sample] = ()) -> Varied:
    """Forward of each case between forward and backward of the one before it.

    A size that a spec gives one value is the same in all of them; of `unlisted` cases, at other sizes,
    forward alone is called, and what comes of it is no error.
    """
    bases = [base for base in map(known, samples) if base is not None][:MOST_CASES]
    findings: list[Finding] = []
    swept = Swept(calls=("interleaved with other cases",)) if len(bases) > 1 else Swept()
    for base, later in zip(bases, [*bases[1:], *bases[:1]], strict=True) if len(bases) > 1 else ():
        found = _overlapped(base, later.sample, OVERLAPPED)
        if base.sample.case.init == later.sample.case.init:
            of_one = _of_one_module(base, later.sample.arguments)
            found = replace(of_one, part=ACROSS_CASES) if of_one else found
        if found is not None and found.severity is Severity.ERROR:
            return Varied((found,), swept)
        findings += [] if found is None else [found]
    doubted = [found for other in unlisted if bases and (found := _unlisted(bases[0], other)) is not None]
    return Varied((*findings[:1], *doubted[:1]), swept)


def _unlisted(base: Verified, other: Sample) -> Finding | None:
    """What a call at sizes that no spec lists leaves behind: inconclusive."""
    found = _overlapped(base, other, replace(OVERLAPPED, when=f"after forward was called at {other.case.id}"))
    if found is None or found.severity is not Severity.ERROR:
        return None
    said = f"{found.message}; no spec lists such sizes"
    hint = f"{STATE_HINT} List these sizes, if they are valid: then this is an error (GV408)."
    return replace(found, code="GV109", severity=rule("GV109").severity, message=said, hint=hint)


def _overlapped(base: Verified, later: Sample, variant: Variant) -> Finding | None:
    """Backward works where its call is alone: whatever it raises now is no refusal of these inputs."""
    call = called(base.sample)
    if isinstance(call, Raised) or isinstance(called(later), Raised):
        return None
    found = variant.gradient(base, call.value)
    return (
        variant.raised(base, found, serious=not found.deliberate) if isinstance(found, RaisedError) else found
    )
