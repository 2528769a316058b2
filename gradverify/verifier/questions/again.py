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
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.guard.memory import filled_memory
from gradverify.verifier.inputs.arguments import arguments_of_call
from gradverify.verifier.numerics.calling import Gradients, Snapshot, copies
from gradverify.verifier.questions.call import backward, called
from gradverify.verifier.questions.result import NOT_REPEATED, SAME_NUMBERS
from gradverify.verifier.questions.subject import Sample
from gradverify.verifier.questions.verified import (
    Variant,
    Varied,
    Verified,
    cotangents,
    drawn_again,
    known,
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

FIRST_CALL = Variant(
    "GV408",
    "in the first call at these sizes",
    "What is set up once (tuning trials, a buffer, a cache) must leave nothing behind in the result of the "
    "call that sets it up.",
    ", which later calls give",
)

MOST_CASES = 12
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


def early_gradient(sample: Sample) -> Gradients | None:
    """The gradient of the first backward of all, to hold against later ones; None where it raises."""
    ran = _run(sample) if sample.subject.is_first_of_options else None
    return None if ran is None else sample.inputs.unflatten(ran[sample.problem.outputs.size :])


def first_call(base: Verified, early: Gradients) -> Varied:
    """GV408: the first backward at these sizes gives what later ones give."""
    return Varied.of(FIRST_CALL.differs(base, base.difference(early)))


def again(base: Verified) -> Varied:
    """The verified call again: in fresh memory full of NaN, and as it is where that makes a difference."""
    sample, is_alone = base.sample, base.sample.subject.across is None
    first = torch.cat([base.values, base.gradient])
    filled = _run(sample, fill=True) if is_alone else None
    if filled is not None and torch.equal(filled, first):
        return Varied.of(calls=["again", "memory full of NaN"])
    # Torch's deterministic mode may itself sum in another order, draw other numbers, or be refused.
    plain = _run(sample)
    if plain is None:
        return Varied()
    found = next(iter(read_unwritten(sample)), None) if is_alone else None
    return Varied.of(found or _unrepeated(base, plain), calls=["again"])


def unrepeatable(sample: Sample) -> tuple[Finding, ...]:
    """Why a gradient that is wrong cannot be judged: another one comes each time (GV408, GV410)."""
    base = known(sample)
    findings = read_unwritten(sample) if base is None else again(base).findings
    return tuple(f for f in findings if f.severity is Severity.ERROR)


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
    ran = _run(sample, fill=fill)
    size = sample.problem.outputs.size + sample.inputs.size
    return torch.full((size,), not fill) if ran is None else ran.isnan()


def _run(sample: Sample, *, fill: bool | None = None) -> Tensor | None:
    """Result and gradient of a fresh call, flat and one after the other; None where it raises."""
    outputs = sample.problem.outputs
    if not sample.inputs.size or not outputs.size:
        return None
    with filled_memory(fill=fill) if fill is not None else torch.enable_grad():
        call = called(sample)
        if isinstance(call, Raised):
            return None
        # As it is before another call could touch it.
        values = guard.call(outputs.flatten, copies(call.value.outputs))
        result = backward(sample, call.value, outputs.unflatten(cotangents(sample)))
    if isinstance(values, Raised) or isinstance(result, Raised):
        return None
    return torch.cat([values.value, sample.inputs.flatten(result.value)])


def _unrepeated(base: Verified, ran: Tensor) -> Finding | None:
    """What it means that a run is not bit by bit the verified one."""
    outputs, gradient = base.sample.problem.outputs, ran[base.sample.problem.outputs.size :]
    moved = base.forward_difference(outputs.unflatten(ran[: outputs.size]), same=True)
    if moved is not None:
        said = f"forward does not repeat itself: with every random state replayed it gave {moved.values}"
        return base.finding("GV109", said, hint=SAME_NUMBERS)
    worst = base.unrepeated(gradient)
    if worst is not None:
        said = (
            f"backward does not repeat itself: the same call gave {worst.place} as {worst.values}, "
            "far beyond rounding, with every random state replayed"
        )
        return base.finding("GV410", said, hint=NONDETERMINISTIC_HINT, input=worst.name, cause=NOT_REPEATED)
    spread = float((gradient - base.gradient).abs().max())
    if not spread:
        return None
    said = (
        f"backward does not repeat itself bit by bit: runs differ by up to {spread:.2g}, no more than "
        "rounding does (sums in another order, as atomic additions make them)"
    )
    hint = f"For torch's gradcheck give nondet_tol={10 ** math.ceil(math.log10(2 * spread)):.0e}."
    return base.finding("GV410", said, hint=hint, severity=Severity.NOTE)


def overlapping(base: Verified) -> Varied:
    """Two further calls between forward and backward of the first; backward of one of them comes first.

    So neither the last call kept, nor the first, nor the last one that is left gives the first its own. What
    was returned stays as it is. A module is called again by the same instance, too.
    """
    sample, other = base.sample, drawn_again(base.sample) or base.sample.arguments
    first = called(sample)
    if isinstance(first, Raised):
        return Varied()
    held = {"forward": [Snapshot.of(o.detach()) for o in first.value.outputs]}
    one, last = called(sample, other), called(sample, other)
    if isinstance(one, Returned) and isinstance(last, Returned):
        other_gradient = backward(sample, one.value, [torch.ones_like(o) for o in one.value.outputs])
        if isinstance(other_gradient, Returned):
            held["backward"] = [Snapshot.of(g) for g in other_gradient.value if g is not None]
        found = INTERLEAVED.gradient(base, backward(sample, first.value, base.grad_outputs()))
        if found is not None:
            return Varied.of(replace(found, cause="stale"), calls=["interleaved"])
    who = next((who for who, kept in held.items() if any(one.rewritten for one in kept)), None)
    if who is not None:  # a buffer of the class, which the next call writes into
        said = f"what {who} returned changes with the next call: that writes into the same memory"
        hint = "Return a tensor of its own (clone it): what was returned is the caller's, who may keep it."
        return Varied.of(base.finding("GV408", said, hint=hint))
    there = replace(sample, arguments=other)
    module = None if sample.subject.again is None else _overlapped(base, there, INTERLEAVED)
    return Varied.of(module, calls=["interleaved", "kept gradient"])


def overlapping_cases(samples: Iterable[Sample], unlisted: Iterable[Sample] = ()) -> Varied:
    """Forward of each case between forward and backward of the one before it.

    A size that a spec gives one value is the same in all of them; of `unlisted` cases, at other sizes,
    forward alone is called, and what comes of it is no error.
    """
    bases = [base for base in map(known, samples) if base is not None][:MOST_CASES]
    later = [base.sample for base in (*bases[1:], *bases[:1])] if len(bases) > 1 else []
    notes: list[Finding] = []
    for base, other in zip(bases, later, strict=False):
        found = _overlapped(base, other, OVERLAPPED)
        if found is not None and found.severity is Severity.ERROR:
            return Varied.of(found)
        notes += [found] if found else []
    for base, other in zip(bases, unlisted, strict=False):
        found = _overlapped(base, other, replace(OVERLAPPED, when=f"after a call at {other.case.id}"))
        if found is not None and found.severity is Severity.ERROR:
            said = f"{found.message}; no spec lists such sizes"
            hint = f"{STATE_HINT} List these sizes, if they are valid: then this is an error (GV408)."
            severity = rule("GV109").severity
            notes.append(replace(found, code="GV109", severity=severity, message=said, hint=hint))
    return Varied.of(*notes[:1], calls=["interleaved with other cases"][: len(later)])


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
