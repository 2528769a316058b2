"""GV408 and GV410: the same call again gives the same result and the same gradient, whatever is in memory.

What `torch.empty` returns is often what was there before: zeros, or the right values of an earlier call. So
the first call again is made in memory full of NaN.

GV408: calls that overlap, as the layers of one model do, and what an earlier call returned. What a Function
keeps on the class and not on ctx shows where two calls differ in it. A size or an option is the same in every
call of one case: only a call of another case overwrites it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from gradverify.model import ACROSS_CASES, Finding, Severity
from gradverify.rules import rule
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.inputs.arguments import arguments_of_call
from gradverify.verifier.numerics.calling import Snapshot
from gradverify.verifier.questions.call import backward, called
from gradverify.verifier.questions.result import NOT_REPEATED, SAME_NUMBERS, CheckResult
from gradverify.verifier.questions.subject import Sample
from gradverify.verifier.questions.verified import (
    Variant,
    Verified,
    drawn_again,
    known,
    ran,
)

MORE_CALLS = 4
"""Calls that are made to see a NaN of the formula from one that an earlier call left in memory."""

STATE_HINT = (
    "Keep what backward needs on ctx (save_for_backward), not on the class, the module or a global: calls "
    "overlap whenever a Function is used twice in one model."
)
NONDETERMINISTIC_HINT = (
    "Look for a race, memory that is read before it is written (torch.empty), random numbers from a source "
    "of its own, or something outside ctx that every call changes."
)
UNWRITTEN_HINT = (
    "Something allocated by torch.empty, empty_like or new_empty is read where it was not written: allocate "
    "it with zeros, or write all of it."
)

MOST_CASES = 4
"""Cases that overlap in a row."""

INTERLEAVED = Variant(
    "GV408", "after a second forward on other inputs", STATE_HINT, "; the calls share something"
)

OVERLAPPED = replace(
    INTERLEAVED,
    when="after forward was called with other sizes or options",
    part=ACROSS_CASES,
    # Backward works where its call is alone: this is no refusal of these inputs.
    is_mistake=lambda error: not error.deliberate,
)


def again(base: Verified) -> CheckResult:
    """The verified call again: in fresh memory full of NaN, and as it is where that makes a difference."""
    sample, is_alone = base.sample, base.sample.subject.across is None
    filled = ran(sample, fill=True) if is_alone else None
    if filled and torch.equal(filled.values, base.values) and torch.equal(filled.gradient, base.gradient):
        return CheckResult.of(calls=["again", "memory full of NaN"])
    # Torch's deterministic mode may itself sum in another order, draw other numbers, or be refused.
    plain = ran(sample)
    if plain is None:
        return CheckResult()
    unwritten = read_unwritten(sample) if is_alone else ()
    return CheckResult.of(*(unwritten or [_unrepeated(base, plain)]), calls=["again"])


def unrepeatable(sample: Sample) -> tuple[Finding, ...]:
    """Why a gradient that is wrong cannot be judged: another one comes each time, or after other calls."""
    base = known(sample)
    if base is None:
        return read_unwritten(sample)
    findings = (*again(base).findings, *overlapping(base).findings)
    return tuple(f for f in findings if f.severity is Severity.ERROR)[:1]


def read_unwritten(sample: Sample) -> tuple[Finding, ...]:
    """What is NaN in memory full of it, two times out of two, and is not otherwise."""
    read = _nan(sample, fill=True)
    if not (read.any() and (read := read & _nan(sample, fill=True)).any()):
        return ()
    # Ordinary memory may hold the NaN of an earlier call.
    formula = [_nan(sample, fill=False) for _ in range(MORE_CALLS)]
    entries = (read & ~torch.stack(formula).all(0)).nonzero()
    if not len(entries):
        return ()
    entry, name = int(entries[0]) - sample.problem.outputs.size, None
    said = "forward reads uninitialised memory: its result is NaN where fresh memory is"
    if entry >= 0:
        name = sample.problem.input_names[sample.inputs.block_of(entry)]
        said = f"backward reads uninitialised memory: the gradient of `{name}` is NaN where fresh memory is"
    return (sample.finding("GV410", said, hint=UNWRITTEN_HINT, input=name),)


def _nan(sample: Sample, *, fill: bool) -> Tensor:
    """Which entries of result and gradient are NaN; where it raises, those that say nothing."""
    found = ran(sample, fill=fill)
    if found is None:
        return torch.full((sample.problem.outputs.size + sample.inputs.size,), not fill)
    return torch.cat([found.values, found.gradient]).isnan()


def _unrepeated(base: Verified, now: Verified) -> Finding | None:
    """What it means that a call is not bit by bit the verified one."""
    moved = base.differs(now.values, of_forward=True, same=True)
    if moved is not None:
        said = f"forward does not repeat itself: with every random state replayed it gave {moved.values}"
        return base.finding("GV109", said, hint=SAME_NUMBERS)
    worst = base.differs(now.gradient, same=True)
    if worst is not None:
        said = (
            f"backward does not repeat itself: the same call gave {worst.place} as {worst.values}, "
            "far beyond rounding, with every random state replayed"
        )
        return base.finding("GV410", said, hint=NONDETERMINISTIC_HINT, input=worst.name, cause=NOT_REPEATED)
    spread = float((now.gradient - base.gradient).abs().max())
    if not spread:
        return None
    said = (
        f"backward does not repeat itself bit by bit: runs differ by up to {spread:.2g}, no more than "
        "rounding does (sums in another order, as atomic additions make them)"
    )
    hint = f"For torch's gradcheck give nondet_tol={10 ** math.ceil(math.log10(2 * spread)):.0e}."
    return base.finding("GV410", said, hint=hint, severity=Severity.NOTE)


def overlapping(base: Verified) -> CheckResult:
    """Two further calls between forward and backward of the first; backward of one of them comes first.

    So neither the last call kept, nor the first, nor the last one that is left gives the first its own. What
    was returned stays as it is. A module is called again by the same instance, too.
    """
    sample, other = base.sample, drawn_again(base.sample) or base.sample.arguments
    first = called(sample)
    if isinstance(first, Raised):
        return CheckResult()
    held = {"forward": [Snapshot.of(o.detach()) for o in first.value.outputs]}
    one, last = called(sample, other), called(sample, other)
    found = None
    if isinstance(one, Returned) and isinstance(last, Returned):
        other_gradient = backward(sample, one.value, [torch.ones_like(o) for o in one.value.outputs])
        if isinstance(other_gradient, Returned):
            held["backward"] = [Snapshot.of(g) for g in other_gradient.value if g is not None]
        found = INTERLEAVED.gradient(base, backward(sample, first.value, base.grad_outputs()))
        found = found and replace(found, cause="stale")
    for who, kept in held.items():
        if not found and any(
            tensor.rewritten for tensor in kept
        ):  # a buffer, which the next call writes into
            said = f"what {who} returned changes with the next call: that writes into the same memory"
            hint = (
                "Return a tensor of its own (clone it): what was returned is the caller's, who may keep it."
            )
            found = base.finding("GV408", said, hint=hint)
    if not found and sample.subject.again is not None:
        found = _overlapped(base, replace(sample, arguments=other), INTERLEAVED)
    return CheckResult.of(found, calls=["interleaved", "kept gradient"])


def overlapping_cases(samples: Iterable[Sample], unlisted: Iterable[Sample] = ()) -> CheckResult:
    """Forward of each case between forward and backward of the one before it.

    A size that a spec gives one value is the same in all of them; of `unlisted` cases, at other sizes,
    forward alone is called, and what comes of it is no error.
    """
    bases = [base for base in map(known, samples) if base is not None][:MOST_CASES]
    later = [base.sample for base in (*bases[1:], *bases[:1])] if len(bases) > 1 else []
    notes: list[Finding] = []
    for base, other in (*zip(bases, later, strict=False), *zip(bases, unlisted, strict=False)):
        found = _overlapped(base, other, replace(OVERLAPPED, when=f"{OVERLAPPED.when} ({other.case.id})"))
        if found is not None and found.severity is Severity.ERROR:
            if any(other is listed for listed in later):
                return CheckResult.of(found)
            said = f"{found.message}; no spec lists such sizes"
            hint = f"{STATE_HINT} List these sizes, if they are valid: then this is an error (GV408)."
            found = replace(found, code="GV109", severity=rule("GV109").severity, message=said, hint=hint)
        notes += [found] if found else []
    return CheckResult.of(*notes[:1], calls=["interleaved with other cases"][: len(later)])


def _overlapped(base: Verified, later: Sample, variant: Variant) -> Finding | None:
    """Another forward between forward and backward; of a module by the same instance, if it can be.

    Where a module refuses that, as after a write into what it saved, nothing is wrong yet.
    """
    sample, twice = base.sample, base.sample.subject.again
    if twice is not None and sample.case.init == later.case.init:
        others = later.arguments
        function = twice(arguments_of_call(others, [a.value for a in others]))
        call = called(replace(sample, problem=replace(sample.problem, function=function)))
        found = variant.judged(base, call)
        return None if found is None or found.raised else found
    call = called(sample)
    return None if isinstance(called(later), Raised) else variant.judged(base, call)
