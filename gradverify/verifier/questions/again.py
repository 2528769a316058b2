"""GV408 and GV410: the same call again gives the same result and the same gradient, whatever is in memory.

What `torch.empty` returns is often what was there before: zeros, or the right values of an earlier call. So
the first call again is made in memory full of NaN.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gradverify.model import Finding, Severity, indexed
from gradverify.verifier import guard
from gradverify.verifier.checks.result import NOT_REPEATED, SAME_NUMBERS
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised
from gradverify.verifier.memory import filled_memory
from gradverify.verifier.numerics.calling import Gradients, copies
from gradverify.verifier.questions.call import backward, called
from gradverify.verifier.questions.verified import Variant, Varied, Verified, cotangents, known, named

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
