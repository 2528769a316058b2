"""GV408: calls that overlap, as the layers of one model do, and what an earlier call returned.

What a Function keeps on the class and not on ctx shows where two calls differ in it. A size or an option is
the same in every call of one case: only a call of another case overwrites it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from gradverify.model import ACROSS_CASES, Finding, Severity
from gradverify.rules import rule
from gradverify.verifier.checks.samples import another_draw
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument, arguments_of_call
from gradverify.verifier.numerics.calling import Snapshot
from gradverify.verifier.questions.again import STATE_HINT
from gradverify.verifier.questions.call import backward, called
from gradverify.verifier.questions.verified import Variant, Varied, Verified, known

MOST_CASES = 12
"""Cases that overlap in a row."""

INTERLEAVED = Variant(
    "GV408", "after a second forward on other inputs", STATE_HINT, "; the calls share something"
)

CALLED_AGAIN = replace(
    INTERLEAVED,
    when="after the module was called on other inputs",
    hint="Keep what backward needs on ctx (save_for_backward, a clone of what is written to), not on the "
    "module: it is called again before backward wherever its weights are shared.",
)

OVERLAPPED = replace(
    INTERLEAVED,
    when="after forward was called with other sizes or options",
    part=ACROSS_CASES,
    # Backward works where its call is alone: this is no refusal of these inputs.
    is_mistake=lambda error: not error.deliberate,
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
    held = {
        f"output {p} that forward" if several else "the result that forward": Snapshot.of(o.detach())
        for p, o in zip(sample.problem.output_positions, first.value.outputs, strict=True)
    }
    one, last = called(sample, other), called(sample, other)
    if isinstance(one, Raised) or isinstance(last, Raised):
        return Varied.of(_overwritten(base, held))
    backward(sample, one.value, [torch.ones_like(o) for o in one.value.outputs])
    result = backward(sample, first.value, base.grad_outputs())
    if isinstance(result, Raised):
        return Varied.of(INTERLEAVED.raised(base, result.error))
    found = INTERLEAVED.differs(base, base.difference(result.value))
    if found is None:
        pairs = zip(base.names, result.value, strict=True)
        held |= {f"the gradient of `{n}` that backward": Snapshot.of(g) for n, g in pairs if g is not None}
        backward(sample, last.value, [-2 * torch.ones_like(o) for o in last.value.outputs])
    found = _overwritten(base, held) if found is None else _with_cause(base, found)
    return Varied.of(found, calls=["interleaved", "kept gradient"])


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
    first, _ = called(base.sample), called(base.sample)
    if INTERLEAVED.judged(base, first) is not None:
        return finding
    what = "What backward uses is of the later call: with the same inputs there, it is right."
    return replace(finding, cause="stale", hint=f"{what} {STATE_HINT}")


def module_called_again(base: Verified) -> Varied:
    """One instance of a module is called on other inputs between its forward and backward."""
    other = another_draw(base.sample)
    if base.sample.subject.again is None or other is None or len(other) != len(base.sample.arguments):
        return Varied()
    return Varied.of(_of_one_module(base, other), calls=["one module twice"])


def _of_one_module(base: Verified, other: Sequence[Argument]) -> Finding | None:
    """What is wrong then. Where it refuses, as after a write into what it saved, nothing is yet."""
    sample = base.sample
    if sample.subject.again is None:
        return None
    function = sample.subject.again(arguments_of_call(other, [a.value for a in other]))
    call = called(replace(sample, problem=replace(sample.problem, function=function)))
    found = CALLED_AGAIN.judged(base, call)
    return None if found is None or found.raised else found


def overlapping_cases(samples: Iterable[Sample], unlisted: Iterable[Sample] = ()) -> Varied:
    """Forward of each case between forward and backward of the one before it.

    A size that a spec gives one value is the same in all of them; of `unlisted` cases, at other sizes,
    forward alone is called, and what comes of it is no error.
    """
    bases = [base for base in map(known, samples) if base is not None][:MOST_CASES]
    findings: list[Finding | None] = []
    calls = ["interleaved with other cases"][: len(bases) > 1]
    for base, later in zip(bases, [*bases[1:], *bases[:1]], strict=True) if calls else ():
        found = _overlapped(base, later.sample, OVERLAPPED)
        if base.sample.case.init == later.sample.case.init:
            of_one = _of_one_module(base, later.sample.arguments)
            found = replace(of_one, part=ACROSS_CASES) if of_one else found
        if found is not None and found.severity is Severity.ERROR:
            return Varied.of(found, calls=calls)
        findings += [found] if found else []
    doubted = [found for other in unlisted if bases and (found := _unlisted(bases[0], other)) is not None]
    return Varied.of(*findings[:1], *doubted[:1], calls=calls)


def _unlisted(base: Verified, other: Sample) -> Finding | None:
    """What a call at sizes that no spec lists leaves behind: inconclusive."""
    found = _overlapped(base, other, replace(OVERLAPPED, when=f"after forward was called at {other.case.id}"))
    if found is None or found.severity is not Severity.ERROR:
        return None
    said = f"{found.message}; no spec lists such sizes"
    hint = f"{STATE_HINT} List these sizes, if they are valid: then this is an error (GV408)."
    return replace(found, code="GV109", severity=rule("GV109").severity, message=said, hint=hint)


def _overlapped(base: Verified, later: Sample, variant: Variant) -> Finding | None:
    call = called(base.sample)
    if isinstance(call, Raised) or isinstance(called(later), Raised):
        return None
    return variant.judged(base, call)
