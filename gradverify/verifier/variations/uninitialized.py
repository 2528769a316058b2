"""GV410: forward or backward reads memory that was never written.

What `torch.empty` returns is often what was there before: zeros, or the right values of an earlier call.
Such a gradient passes here and is garbage elsewhere, so a call runs once more in memory full of NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradverify.model import Finding, Swept, indexed
from gradverify.verifier import guard
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.memory import filled_memory
from gradverify.verifier.numerics.calling import copies
from gradverify.verifier.variations.call import backward, called, is_accident
from gradverify.verifier.variations.verified import Difference, Varied, Verified, cotangents

MORE_CALLS = 3
"""Calls that are made to see a NaN of the formula from one that an earlier call left in memory."""

COPIES = 8
"""Tensors of each size that are written in between: an allocator gives back what was freed last."""

_HINT = (
    "Something allocated by torch.empty, empty_like or new_empty is read where it was not written: allocate "
    "it with zeros, or write all of it."
)

_Values = tuple[Tensor, Tensor]
"""(result, gradient) of one call, flat."""

_Ran = Returned[_Values] | Raised


def unwritten_memory(base: Verified) -> Varied:
    """The verified call with fresh memory full of NaN gives the same result and the same gradient."""
    swept = Swept(calls=("memory full of NaN",))
    filled = _run(base.sample, fill=True)
    if not isinstance(filled, Raised) and all(map(torch.equal, filled.value, (base.values, base.gradient))):
        return Varied(swept=swept)
    # Torch's deterministic mode may itself sum in another order, draw other numbers, or be refused.
    plain = _run(base.sample, fill=False)
    if isinstance(plain, Raised):
        return Varied()
    finding = _read(base.sample, plain)
    if finding is None and _is_other(base, plain):
        return Varied()
    if finding is None and _is_other(base, filled):
        finding = _otherwise(base, _run(base.sample, fill=True))
    return Varied(() if finding is None else (finding,), swept)


def read_unwritten(sample: Sample) -> tuple[Finding, ...]:
    """The same of a gradient that is wrong: whether it is so because of what was in memory before."""
    plain = _run(sample, fill=False)
    finding = None if isinstance(plain, Raised) else _read(sample, plain)
    return () if finding is None else (finding,)


def _read(sample: Sample, plain: Returned[_Values]) -> Finding | None:
    """What is NaN in memory full of it, two times out of two, and is not otherwise."""
    runs = [_run(sample, fill=True), _run(sample, fill=True)]
    filled = [run.value for run in runs if isinstance(run, Returned)]
    if len(filled) < len(runs):
        return None
    nan = _nan_by_itself(sample, plain, filled)
    problem, inputs = sample.problem, sample.inputs
    outputs = [f"output {p}" if len(problem.output_positions) > 1 else "y" for p in problem.output_positions]
    if (read := _nan_in_all(filled, 0) & ~nan[0]).any():
        entry = int(read.int().argmax())
        number = problem.outputs.block_of(entry)
        place, name = indexed(outputs[number], problem.outputs.blocks[number].index(entry)), None
        what = f"forward reads uninitialised memory: {place}"
    elif (read := _nan_in_all(filled, 1) & ~nan[1]).any():
        entry = int(read.int().argmax())
        name = problem.input_names[inputs.block_of(entry)]
        place = indexed(name, inputs.blocks[inputs.block_of(entry)].index(entry))
        what = f"backward reads uninitialised memory: the gradient of {place}"
    else:
        return None
    return sample.finding("GV410", f"{what} is NaN where fresh memory holds NaN", hint=_HINT, input=name)


def _nan_by_itself(sample: Sample, plain: Returned[_Values], filled: list[_Values]) -> _Values:
    """Which of (result, gradient) is NaN whatever is in memory.

    Ordinary memory may hold the NaN of an earlier call, so where that could be it, more calls are asked.
    """
    runs = [plain.value]
    for _ in range(MORE_CALLS):
        if not any((_nan_in_all(filled, n) & _nan_in_all(runs, n)).any() for n in (0, 1)):
            break
        # Leave ones in memory of the sizes that the next call will ask for.
        blocks = (*sample.inputs.blocks, *sample.problem.outputs.blocks)
        held = [torch.ones(b.shape, dtype=b.dtype, device=b.device) for b in blocks for _ in range(COPIES)]
        del held
        again = _run(sample, fill=False)
        if isinstance(again, Returned):
            runs.append(again.value)
    return _nan_in_all(runs, 0), _nan_in_all(runs, 1)


def _nan_in_all(runs: list[_Values], number: int) -> Tensor:
    return torch.stack([run[number].isnan() for run in runs]).all(dim=0)


def _otherwise(base: Verified, ran: _Ran) -> Finding | None:
    """What integers and masks that were never written do: they hold no NaN."""
    said = "uninitialised memory is read: "
    if isinstance(ran, Raised):
        if not is_accident(ran.error):
            return None
        said += f"{ran.error.type} is raised once fresh integers are large"
        return base.finding("GV410", said, hint=_HINT, raised=ran.error)
    moved, off = _differences(base, ran.value)
    worst = moved or off
    if worst is None:
        return None
    where = f"{'' if moved else 'the gradient of '}{worst.place} is {worst.values}"
    name = None if moved else worst.name
    return base.finding("GV410", f"{said}{where} once fresh integers are large", hint=_HINT, input=name)


def _is_other(base: Verified, ran: _Ran) -> bool:
    return isinstance(ran, Raised) or any(_differences(base, ran.value))


def _differences(base: Verified, ran: _Values) -> tuple[Difference | None, Difference | None]:
    """Where result and gradient are not those of the verified call."""
    moved = base.forward_difference(base.sample.problem.outputs.unflatten(ran[0]))
    return moved, base.unrepeated(ran[1])


def _run(sample: Sample, *, fill: bool) -> _Ran:
    """A fresh call, its results as they were before another call could touch them."""
    outputs = sample.problem.outputs
    with filled_memory(fill=fill):
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
