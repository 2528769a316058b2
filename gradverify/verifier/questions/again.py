"""GV408 and GV410: the same call again gives the same result and the same gradient, whatever is in memory.

What `torch.empty` returns is often what was there before: zeros, or the right values of an earlier call. So
the first call again is made in memory full of NaN.

GV408: calls that overlap, as the layers of one model do, and what an earlier call returned. What a Function
keeps on the class and not on ctx shows where two calls differ in it. A size or an option is the same in every
call of one case: only a call of another case overwrites it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradverify.model import ACROSS_CASES, Finding, Severity, indexed
from gradverify.rules import rule
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.guard.memory import filled_memory
from gradverify.verifier.inputs.arguments import Argument, arguments_of_call
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
    named,
)

MORE_RUNS = 4
"""Further runs where one does not repeat the verified one, to see in which way."""

MORE_CALLS = 3
"""Calls that are made to see a NaN of the formula from one that an earlier call left in memory."""

COPIES = 8
"""Tensors of each size that are written in between: an allocator gives back what was freed last."""

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

LARGE_INTEGERS = Variant("GV410", "where uninitialised memory holds large integers", UNWRITTEN_HINT)
"""Integers and masks hold no NaN."""


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
    finding = next(iter(read_unwritten(sample)), None) if is_alone else None
    if finding is None and not torch.equal(plain, first):
        finding = _unrepeated(base, plain)
    elif finding is None and is_alone:
        finding = _integers(base) and _integers(base)
    return Varied.of(finding, calls=["again"])


def unrepeatable(sample: Sample) -> tuple[Finding, ...]:
    """Why a gradient that is wrong cannot be judged: another one comes each time (GV408, GV410)."""
    base = known(sample)
    findings = read_unwritten(sample) if base is None else again(base).findings
    return tuple(f for f in findings if f.severity is Severity.ERROR)


def read_unwritten(sample: Sample) -> tuple[Finding, ...]:
    """What is NaN in memory full of it, two times out of two, and is not otherwise."""
    read = _nan(sample, fill=True)
    read = read & _nan(sample, fill=True) if read.any() else read
    blocks = (*sample.inputs.blocks, *sample.problem.outputs.blocks)
    by_itself = read
    for _ in range(1 + MORE_CALLS if read.any() else 0):
        # Ordinary memory may hold the NaN of an earlier call: leave ones where the next call will allocate.
        by_itself = by_itself & _nan(sample, fill=False)
        if not by_itself.any():
            break
        held = [torch.ones(b.shape, dtype=b.dtype, device=b.device) for b in blocks for _ in range(COPIES)]
        del held
    read = read & ~by_itself
    return (_uninitialised(sample, int(read.int().argmax())),) if read.any() else ()


def _uninitialised(sample: Sample, entry: int) -> Finding:
    problem, name = sample.problem, None
    layout, names, said = problem.outputs, named(problem), "forward reads uninitialised memory: "
    if entry >= layout.size:
        entry -= layout.size
        layout, names = sample.inputs, list(problem.input_names)
        said, name = "backward reads uninitialised memory: the gradient of ", names[layout.block_of(entry)]
    block = layout.block_of(entry)
    said += f"{indexed(names[block], layout.blocks[block].index(entry))} is NaN where fresh memory holds NaN"
    return sample.finding("GV410", said, hint=UNWRITTEN_HINT, input=name)


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


def _unrepeated(base: Verified, first: Tensor) -> Finding | None:
    """What it means that a run is not bit by bit the verified one."""
    outputs = base.sample.problem.outputs
    runs = [first, *(ran for _ in range(MORE_RUNS) if (ran := _run(base.sample)) is not None)]
    results = [outputs.unflatten(run[: outputs.size]) for run in runs]
    gradients = torch.stack([run[outputs.size :] for run in runs])
    stochastic = next(filter(None, (base.forward_difference(y, same=True) for y in results)), None)
    if stochastic is not None:
        return base.finding(
            "GV109",
            "forward does not repeat itself: with every random state replayed, the same call gave "
            f"{stochastic.values}",
            hint=SAME_NUMBERS,
        )
    worst = next(filter(None, map(base.unrepeated, gradients)), None)
    if worst is None:
        spread = float((gradients - base.gradient).abs().max())
        return _within_rounding(base, spread) if spread else None
    if _depends_on_calls(gradients):
        said = (
            f"the gradient of `{worst.name}` depends on how often the Function was called: "
            f"{worst.place} is {worst.values} the time before, for the same inputs"
        )
        return base.finding("GV408", said, hint=STATE_HINT, input=worst.name)
    said = (
        f"backward does not repeat itself: the same call gave {worst.place} as {worst.values}, "
        "far beyond rounding, with every random state replayed"
    )
    return base.finding("GV410", said, hint=NONDETERMINISTIC_HINT, input=worst.name, cause=NOT_REPEATED)


def _within_rounding(base: Verified, spread: float) -> Finding:
    tolerance = 10 ** math.ceil(math.log10(2 * spread))
    return base.finding(
        "GV410",
        f"backward does not repeat itself bit by bit: runs differ by up to {spread:.2g}, no more than "
        "rounding does (sums in another order, as atomic additions make them)",
        hint=f"For torch's gradcheck give nondet_tol={tolerance:.0e}.",
        severity=Severity.NOTE,
    )


def _depends_on_calls(later: Tensor) -> bool:
    """Whether all calls but the first of all agree, or every one in a row adds the same."""
    steps = later[2:] - later[1:-1]
    size = steps[:1].abs().max() if len(steps) else 0.0
    drifts = size > 0 and bool(((steps - steps[0]).abs() <= SAME_STEP * size).all())
    return drifts or bool((later == later[0]).all())


def _integers(base: Verified) -> Finding | None:
    """What integers and masks that were never written do."""
    with filled_memory():
        found = LARGE_INTEGERS.judged(base, called(base.sample))
    return found if found is not None and found.severity is Severity.ERROR else None


def overlapping(base: Verified) -> Varied:
    """Two further calls between forward and backward of the first; backward of one of them comes first.

    So neither the last call kept, nor the first, nor the last one that is left gives the first its own. What
    the first returned, and its gradient, stay as they are.
    """
    sample, other = base.sample, drawn_again(base.sample) or base.sample.arguments
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
    found = INTERLEAVED.gradient(base, result)
    if isinstance(result, Returned):
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
    other = drawn_again(base.sample)
    if base.sample.subject.again is None or other is None:
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
