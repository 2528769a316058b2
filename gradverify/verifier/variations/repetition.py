"""GV408 to GV410: the same call again, calls that overlap, backward twice, and whether runs repeat.

GV408: calls of different cases overlap, as the layers of one model do.

What a Function keeps on the class and not on ctx shows at once where two calls differ in it. A size or an
option is the same in every call of one case: only a call of another case overwrites it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import torch
from torch import Tensor

from gradverify.model import ACROSS_CASES, Finding, RaisedError, Severity, Swept
from gradverify.rules import rule
from gradverify.verifier import guard
from gradverify.verifier.checks.result import NOT_REPEATED, SAME_NUMBERS
from gradverify.verifier.checks.samples import another_draw
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument, arguments_of_call
from gradverify.verifier.numerics.calling import Gradients, Snapshot, copies
from gradverify.verifier.variations.call import backward, called, is_accident
from gradverify.verifier.variations.verified import Variant, Varied, Verified, verified

RUNS = 2
"""Runs after the verified one that must repeat it."""

MORE_RUNS = 4
"""Further runs where they do not, to see in which way."""

SAME_STEP = 1e-6
"""Relative deviation of one call's change from the next's where a result drifts from call to call."""

STATE_HINT = (
    "Keep what backward needs on ctx (save_for_backward), not on the class, the module or a global: calls "
    "overlap whenever a Function is used twice in one model."
)
NONDETERMINISTIC_HINT = (
    "Look for a race, memory that is read before it is written (torch.empty), random numbers from a source "
    "of its own, or something outside ctx that every call changes."
)

FIRST_CALL = Variant(
    "GV408",
    "in the first call at these sizes",
    "What is set up once (tuning trials, a buffer, a cache) must leave nothing behind in the result of the "
    "call that sets it up.",
    ", which later calls give",
)

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

BACKWARD_TWICE = Variant(
    "GV409",
    "in a second backward through the same graph (retain_graph=True)",
    "Backward must leave what it uses as it found it: clone a buffer before accumulating into it, and do not "
    "delete attributes of ctx.",
    " the first time",
)


def repeated_runs(base: Verified) -> Varied:
    """GV408 and GV410: the same call again gives the same result and the same gradient."""
    runs = _runs(base, RUNS)
    if runs is None:
        return Varied()
    swept = Swept(calls=("again",))
    finding = None
    if not all(torch.equal(g, base.gradient) and torch.equal(y, base.values) for y, g in runs):
        finding = _unrepeated(base, runs)
    return Varied(() if finding is None else (finding,), swept)


def _unrepeated(base: Verified, runs: Sequence[tuple[Tensor, Tensor]]) -> Finding | None:
    """What it means that (result, gradient) of some runs are not bit by bit those of the verified one."""
    outputs = base.sample.problem.outputs
    moved = (base.forward_difference(outputs.unflatten(y), same=True) for y, _ in runs)
    stochastic = next((m for m in moved if m is not None), None)
    if stochastic is not None:
        return base.finding(
            "GV109",
            "forward does not repeat itself: with every random state replayed, the same call gave "
            f"{stochastic.values}",
            hint=SAME_NUMBERS,
        )
    worst = next((d for d in (base.unrepeated(g) for _, g in runs) if d is not None), None)
    if worst is None:
        spread = torch.stack([(g - base.gradient).abs() for _, g in runs]).max().item()
        return _within_rounding(base, spread) if spread else None
    more = _runs(base, MORE_RUNS) or []
    if _depends_on_calls([base.gradient, *(g for _, g in runs)], [g for _, g in more]):
        code, hint, cause = "GV408", STATE_HINT, ""
        said = (
            f"the gradient of `{worst.name}` depends on how often the Function was called: "
            f"{worst.place} is {worst.values} the time before, for the same inputs"
        )
    else:
        code, hint, cause = "GV410", NONDETERMINISTIC_HINT, NOT_REPEATED
        said = (
            f"backward does not repeat itself: the same call gave {worst.place} as {worst.values}, "
            "far beyond rounding, with every random state replayed"
        )
    return base.finding(code, said, hint=hint, input=worst.name, cause=cause)


def _within_rounding(base: Verified, spread: float) -> Finding:
    tolerance = 10 ** math.ceil(math.log10(2 * spread))
    return base.finding(
        "GV410",
        f"backward does not repeat itself bit by bit: runs differ by up to {spread:.2g}, no more than "
        "rounding does (sums in another order, as atomic additions make them)",
        hint=f"For torch's gradcheck give nondet_tol={tolerance:.0e}.",
        severity=Severity.NOTE,
    )


def _depends_on_calls(first: Sequence[Tensor], more: Sequence[Tensor]) -> bool:
    """Whether the first differs from all later ones, or every one of those in a row adds the same."""
    later = [*first[1:], *more]
    if all(torch.equal(g, later[0]) for g in later):
        return True
    steps = [b - a for a, b in pairwise(more)]
    size = steps[0].abs().max() if steps else torch.zeros(())
    return bool(size > 0) and all(bool(((s - steps[0]).abs() <= SAME_STEP * size).all()) for s in steps)


def _runs(base: Verified, count: int) -> list[tuple[Tensor, Tensor]] | None:
    """(result, gradient) of so many fresh calls; None where one raises."""
    found = []
    for _ in range(count):
        call = called(base.sample)
        if isinstance(call, Raised):
            return None
        # Copied before backward can touch it.
        values = guard.call(base.sample.problem.outputs.flatten, copies(call.value.outputs))
        result = backward(base.sample, call.value, base.grad_outputs())
        if isinstance(values, Raised) or isinstance(result, Raised):
            return None
        found.append((values.value, base.inputs.flatten(result.value)))
    return found


def first_call(base: Verified, early: Gradients) -> Varied:
    """GV408: the first backward at these sizes, made before anything else, gives what later ones give."""
    difference = base.difference(early)
    finding = None if difference is None else FIRST_CALL.differs(base, difference)
    return Varied(() if finding is None else (finding,))


def interleaved(base: Verified) -> Varied:
    """GV408: a second call between forward and backward of the first, in both orders of backward."""
    sample, other = base.sample, another_draw(base.sample)
    if other is None or len(other) != len(sample.arguments):
        return Varied()
    swept = Swept(calls=("interleaved",))
    for first_again in (True, False):
        first, second = called(sample), called(sample, other)
        if isinstance(first, Raised) or isinstance(second, Raised):
            return Varied()
        ones = [torch.ones_like(o) for o in second.value.outputs]
        if not first_again:
            backward(sample, second.value, ones)
        found = INTERLEAVED.gradient(base, first.value)
        if isinstance(found, Finding):
            return Varied((_with_cause(base, found),), swept)
        if found is not None and is_accident(found):
            return Varied((INTERLEAVED.raised(base, found),), swept)
        if first_again:  # so that what is kept in pairs is even again
            backward(sample, second.value, ones)
    return Varied(swept=swept)


def module_called_again(base: Verified) -> Varied:
    """GV408: one instance of a module is called on other inputs between its forward and backward."""
    other = another_draw(base.sample)
    is_module = base.sample.subject.again is not None
    if not is_module or other is None or len(other) != len(base.sample.arguments):
        return Varied()
    found = _called_again(base, other)
    if isinstance(found, RaisedError):
        return Varied()
    return Varied(() if found is None else (found,), Swept(calls=("one module twice",)))


def _called_again(base: Verified, other: Sequence[Argument]) -> Finding | RaisedError | None:
    """What is wrong then. Where backward refuses, as after a write into what it saved, nothing is yet."""
    sample = base.sample
    if sample.subject.again is None:
        return None
    function = sample.subject.again(arguments_of_call(other, [a.value for a in other]))
    call = called(replace(sample, problem=replace(sample.problem, function=function)))
    return call.error if isinstance(call, Raised) else CALLED_AGAIN.gradient(base, call.value)


def _with_cause(base: Verified, finding: Finding) -> Finding:
    """`stale`, where the first gradient is right once the second call has the same inputs as the first."""
    first = called(base.sample)
    if isinstance(first, Raised) or isinstance(called(base.sample), Raised):
        return finding
    if INTERLEAVED.gradient(base, first.value) is not None:
        return finding
    what = "What backward uses is of the later call: with the same inputs there, it is right."
    return replace(finding, cause="stale", hint=f"{what} {STATE_HINT}")


def repeated_backward(base: Verified) -> Varied:
    """GV409: a second backward through the same graph (`retain_graph=True`) gives the same gradient."""
    call = called(base.sample)
    if isinstance(call, Raised):
        return Varied()
    first = backward(base.sample, call.value, base.grad_outputs(), retain=True)
    if isinstance(first, Raised):
        return Varied()
    found = BACKWARD_TWICE.gradient(base, call.value)
    if found is not None and not isinstance(found, Finding):
        found = BACKWARD_TWICE.raised(base, found)
    return Varied(() if found is None else (found,), Swept(calls=("backward twice",)))


def kept_results(base: Verified) -> Varied:
    """GV408: what forward and backward returned stays as it is while the Function is used again.

    It changes where they return a buffer of the class, which the next call writes into.
    """
    first = called(base.sample)
    if isinstance(first, Raised):
        return Varied()
    several = base.sample.outputs_returned > 1
    positions = base.sample.problem.output_positions
    held = [
        _Held("forward", f"output {p}" if several else "the result", Snapshot.of(o.detach()), output=p)
        for p, o in zip(positions, first.value.outputs, strict=True)
    ]
    result = backward(base.sample, first.value, base.grad_outputs())
    if isinstance(result, Raised):
        return Varied()
    held += [
        _Held("backward", f"the gradient of `{name}`", Snapshot.of(g), input=name)
        for name, g in zip(base.names, result.value, strict=True)
        if g is not None
    ]
    second = called(base.sample, another_draw(base.sample) or ())
    if not isinstance(second, Raised):
        backward(base.sample, second.value, [-2 * torch.ones_like(o) for o in second.value.outputs])
    finding = next((_overwritten(base, one) for one in held if one.snapshot.rewritten), None)
    return Varied(() if finding is None else (finding,), Swept(calls=("kept gradient",)))


@dataclass(frozen=True)
class _Held:
    """Something that was returned."""

    by: str
    """`forward` or `backward`."""
    words: str
    snapshot: Snapshot
    output: int | None = None
    input: str | None = None


def _overwritten(base: Verified, one: _Held) -> Finding:
    return base.finding(
        "GV408",
        f"{one.words} that {one.by} returned changes with the next call: that writes into the same memory",
        hint="Return a tensor of its own (clone it): what was returned is the caller's, who may keep it.",
        output=one.output,
        input=one.input,
    )


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
            finding = _of_one_module(base, later.sample) or _overlapped(base, later.sample)
            if finding is not None and finding.severity is Severity.ERROR:
                return Varied((finding,), swept)
            findings += [] if finding is None else [finding]
    doubted = [found for other in unlisted if (found := _unlisted(alone[0], other)) is not None]
    return Varied((*findings[:1], *doubted[:1]), swept)


def _of_one_module(base: Verified, later: Sample) -> Finding | None:
    """The same of one instance, where both cases build the same module."""
    if base.sample.case.init != later.case.init:
        return None
    found = _called_again(base, later.arguments)
    return replace(found, part=ACROSS_CASES) if isinstance(found, Finding) else None


def _unlisted(base: Verified, other: Sample) -> Finding | None:
    """What a call at sizes that no spec lists leaves behind: inconclusive."""
    variant = replace(OVERLAPPED, when=f"after forward was called at {other.case.id}")
    finding = _overlapped(base, other, variant)
    if finding is None or finding.severity is not Severity.ERROR:
        return None
    return replace(
        finding,
        code="GV109",
        severity=rule("GV109").severity,
        message=f"{finding.message}; no spec lists such sizes",
        hint=f"{STATE_HINT} List these sizes, if they are valid: then this is an error (GV408).",
    )


def _overlapped(base: Verified, later: Sample, variant: Variant = OVERLAPPED) -> Finding | None:
    """Backward works where its call is alone: whatever it raises now is no refusal of these inputs."""
    call = called(base.sample)
    if isinstance(call, Raised) or isinstance(called(later), Raised):
        return None
    found = variant.gradient(base, call.value)
    if found is None or isinstance(found, Finding):
        return found
    return variant.raised(base, found, serious=not found.deliberate)
