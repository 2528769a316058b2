"""GV408 and GV410: the same call again gives the same result and the same gradient, whatever is in memory.

What `torch.empty` returns is often what was there before: zeros, or the right values of an earlier call. So
the first call again is made in memory full of NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from gradverify.model import Finding, Severity, Swept, indexed
from gradverify.verifier import guard
from gradverify.verifier.checks.result import NOT_REPEATED, SAME_NUMBERS
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.memory import filled_memory
from gradverify.verifier.numerics.calling import Gradients, copies
from gradverify.verifier.questions.call import backward, called, is_accident
from gradverify.verifier.questions.verified import Difference, Variant, Varied, Verified, cotangents, known

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

_Run = tuple[Tensor, Tensor]
"""(result, gradient) of one call, flat."""


def early_gradient(sample: Sample) -> Gradients | None:
    """The gradient of the first backward of all, to hold against later ones; None where it raises."""
    if not sample.subject.is_first_of_options or not sample.inputs.size or not sample.problem.outputs.size:
        return None
    ran = _run(sample)
    return None if isinstance(ran, Raised) else sample.inputs.unflatten(ran.value[1])


def first_call(base: Verified, early: Gradients) -> Varied:
    """GV408: the first backward at these sizes gives what later ones give."""
    difference = base.difference(early)
    return Varied(() if difference is None else (FIRST_CALL.differs(base, difference),))


def again(base: Verified) -> Varied:
    """The verified call again: in fresh memory full of NaN, and as it is where that makes a difference."""
    sample, is_alone = base.sample, base.sample.subject.across is None
    filled = _run(sample, fill=True) if is_alone else None
    if filled is not None and _is_same(base, filled):
        return Varied(swept=Swept(calls=("again", "memory full of NaN")))
    # Torch's deterministic mode may itself sum in another order, draw other numbers, or be refused.
    plain = _run(sample)
    if isinstance(plain, Raised):
        return Varied()
    finding = _unwritten(sample, plain) if is_alone else None
    if finding is None and not _is_same(base, plain):
        finding = _unrepeated(base, plain.value)
    elif finding is None and filled is not None:
        finding = _integers(base, filled) and _integers(base, _run(sample, fill=True))
    return Varied(() if finding is None else (finding,), Swept(calls=("again",)))


def unrepeatable(sample: Sample) -> tuple[Finding, ...]:
    """Why a gradient that is wrong cannot be judged: another one comes each time (GV408, GV410)."""
    base = known(sample)
    findings = read_unwritten(sample) if base is None else again(base).findings
    return tuple(f for f in findings if f.severity is Severity.ERROR)


def read_unwritten(sample: Sample) -> tuple[Finding, ...]:
    """Whether a gradient that is wrong is so because of what was in memory before."""
    plain = _run(sample) if sample.inputs.size and sample.problem.outputs.size else None
    finding = _unwritten(sample, plain) if isinstance(plain, Returned) else None
    return () if finding is None else (finding,)


def _run(sample: Sample, *, fill: bool | None = None) -> Returned[_Run] | Raised:
    """A fresh call, its results as they were before another call could touch them."""
    outputs = sample.problem.outputs
    with filled_memory(fill=fill) if fill is not None else torch.enable_grad():
        call = called(sample)
        if isinstance(call, Raised):
            return call
        values = guard.call(outputs.flatten, copies(call.value.outputs))
        if isinstance(values, Raised):
            return values
        result = backward(sample, call.value, outputs.unflatten(cotangents(sample)))
    if isinstance(result, Raised):
        return result
    return Returned((values.value, sample.inputs.flatten(result.value)))


def _is_same(base: Verified, ran: Returned[_Run] | Raised) -> bool:
    return isinstance(ran, Returned) and all(map(torch.equal, ran.value, (base.values, base.gradient)))


def _unrepeated(base: Verified, first: _Run) -> Finding | None:
    """What it means that (result, gradient) of a run are not bit by bit those of the verified one."""
    ran = [_run(base.sample) for _ in range(MORE_RUNS)]
    runs = [first, *(r.value for r in ran if isinstance(r, Returned))]
    layout = base.sample.problem.outputs
    stochastic = next(
        filter(None, (base.forward_difference(layout.unflatten(y), same=True) for y, _ in runs)), None
    )
    if stochastic is not None:
        return base.finding(
            "GV109",
            "forward does not repeat itself: with every random state replayed, the same call gave "
            f"{stochastic.values}",
            hint=SAME_NUMBERS,
        )
    worst = next(filter(None, (base.unrepeated(g) for _, g in runs)), None)
    if worst is None:
        spread = torch.stack([(g - base.gradient).abs() for _, g in runs]).max().item()
        return _within_rounding(base, spread) if spread else None
    code, hint, cause = "GV410", NONDETERMINISTIC_HINT, NOT_REPEATED
    said = (
        f"backward does not repeat itself: the same call gave {worst.place} as {worst.values}, "
        "far beyond rounding, with every random state replayed"
    )
    if _depends_on_calls([g for _, g in runs], [g for _, g in runs[1:]]):
        code, hint, cause = "GV408", STATE_HINT, ""
        said = (
            f"the gradient of `{worst.name}` depends on how often the Function was called: "
            f"{worst.place} is {worst.values} the time before, for the same inputs"
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


def _depends_on_calls(later: Sequence[Tensor], in_a_row: Sequence[Tensor]) -> bool:
    """Whether all calls but the first of all agree, or every one in a row adds the same."""
    if all(torch.equal(g, later[0]) for g in later):
        return True
    steps = [b - a for a, b in pairwise(in_a_row)]
    size = steps[0].abs().max() if steps else torch.zeros(())
    return bool(size > 0) and all(bool(((s - steps[0]).abs() <= SAME_STEP * size).all()) for s in steps)


def _unwritten(sample: Sample, plain: Returned[_Run]) -> Finding | None:
    """What is NaN in memory full of it, two times out of two, and is not otherwise."""
    runs = [_run(sample, fill=True), _run(sample, fill=True)]
    filled = [run.value for run in runs if isinstance(run, Returned)]
    if len(filled) < len(runs):
        return None
    nan = _nan_by_itself(sample, plain.value, filled)
    problem = sample.problem
    outputs = [f"output {p}" if len(problem.output_positions) > 1 else "y" for p in problem.output_positions]
    for number, (who, layout, names) in enumerate(
        (("forward", problem.outputs, outputs), ("backward", sample.inputs, problem.input_names))
    ):
        read = _nan_in_all(filled, number) & ~nan[number]
        if read.any():
            entry = int(read.int().argmax())
            block = layout.block_of(entry)
            place = indexed(names[block], layout.blocks[block].index(entry))
            said = f"{who} reads uninitialised memory: {'the gradient of ' * number}{place} is NaN"
            name = names[block] if number else None
            said += " where fresh memory holds NaN"
            return sample.finding("GV410", said, hint=UNWRITTEN_HINT, input=name)
    return None


def _nan_by_itself(sample: Sample, plain: _Run, filled: list[_Run]) -> _Run:
    """Which of (result, gradient) is NaN whatever is in memory.

    Ordinary memory may hold the NaN of an earlier call, so where that could be it, more calls are asked.
    """
    runs = [plain]
    for _ in range(MORE_CALLS):
        if not any((_nan_in_all(filled, n) & _nan_in_all(runs, n)).any() for n in (0, 1)):
            break
        # Leave ones in memory of the sizes that the next call will ask for.
        blocks = (*sample.inputs.blocks, *sample.problem.outputs.blocks)
        held = [torch.ones(b.shape, dtype=b.dtype, device=b.device) for b in blocks for _ in range(COPIES)]
        del held
        ran = _run(sample, fill=False)
        runs += [ran.value] if isinstance(ran, Returned) else []
    return _nan_in_all(runs, 0), _nan_in_all(runs, 1)


def _nan_in_all(runs: list[_Run], number: int) -> Tensor:
    return torch.stack([run[number].isnan() for run in runs]).all(dim=0)


def _integers(base: Verified, ran: Returned[_Run] | Raised) -> Finding | None:
    """What integers and masks that were never written do: they hold no NaN."""
    said, name, error = "uninitialised memory is read: ", None, None
    if isinstance(ran, Raised):
        error = ran.error
        if not is_accident(error):
            return None
        said += f"{error.type} is raised"
    else:
        values, gradient = ran.value
        moved = base.forward_difference(base.sample.problem.outputs.unflatten(values))
        worst: Difference | None = moved or base.unrepeated(gradient)
        if worst is None:
            return None
        name = None if moved else worst.name
        said += f"{'' if moved else 'the gradient of '}{worst.place} is {worst.values}"
    said += " once fresh integers are large"
    return base.finding("GV410", said, hint=UNWRITTEN_HINT, input=name, raised=error)
