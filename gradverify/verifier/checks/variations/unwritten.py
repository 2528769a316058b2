"""GV410: forward or backward reads memory that nobody wrote.

What `torch.empty` returns is often what was there before: zeros, or the right values of an earlier call.
Such a gradient passes here and is garbage elsewhere, so a call runs once more in memory full of NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gradverify.model import Finding, Swept, indexed
from gradverify.verifier import guard
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.variations.running import backward, called, is_accident
from gradverify.verifier.checks.variations.variation import Varied
from gradverify.verifier.checks.variations.verified import Verified, cotangents
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.memory import filled_memory
from gradverify.verifier.numerics.flat import Layout

MORE_CALLS = 3
"""Calls that are made to see a NaN of the formula from one that an earlier call left in memory."""

COPIES = 8
"""Tensors of each size that are written in between: an allocator gives back what was freed last."""

_SWEPT = Swept(calls=("memory full of NaN",))

_HINT = (
    "Something allocated by torch.empty, empty_like or new_empty is read where it was not written: allocate "
    "it with zeros, or write all of it."
)

_Ran = Returned[tuple[Tensor, Tensor]] | Raised
"""(result, gradient) of one call, flat."""


def unwritten_memory(base: Verified) -> Varied:
    """The verified call with fresh memory full of NaN gives the same result and the same gradient."""
    filled = _run(base.sample, fill=True)
    if not isinstance(filled, Raised) and all(map(torch.equal, filled.value, (base.values, base.gradient))):
        return Varied(swept=_SWEPT)
    # Torch's deterministic mode may itself sum in another order, draw other numbers, or be refused.
    plain = _run(base.sample, fill=False)
    if isinstance(plain, Raised):
        return Varied()
    finding = _read(base.sample, plain)
    if finding is None and _differs(base, plain):
        return Varied()
    if finding is None and _differs(base, filled) and _differs(base, again := _run(base.sample, fill=True)):
        finding = _otherwise(base, again)
    return Varied(() if finding is None else (finding,), _SWEPT)


def read_unwritten(sample: Sample) -> tuple[Finding, ...]:
    """The same of a gradient that is wrong: whether it is so because of what was in memory before."""
    plain = _run(sample, fill=False)
    finding = None if isinstance(plain, Raised) else _read(sample, plain)
    return () if finding is None else (finding,)


def _read(sample: Sample, plain: Returned[tuple[Tensor, Tensor]]) -> Finding | None:
    """What is NaN in memory full of it, two times out of two, and is not otherwise."""
    runs = [_run(sample, fill=True), _run(sample, fill=True)]
    filled = [run.value for run in runs if isinstance(run, Returned)]
    if len(filled) < len(runs):
        return None
    nan = _by_itself(sample, plain, filled)
    outputs, inputs = sample.problem.outputs, sample.inputs
    places = (
        ("forward", outputs, _output_names(sample), ""),
        ("backward", inputs, sample.problem.input_names, "the gradient of "),
    )
    for number, (method, layout, names, of) in enumerate(places):
        read = _nan_in_all(filled, number) & ~nan[number]
        if read.any():
            place, name = _place(layout, names, int(read.int().argmax()))
            return sample.finding(
                "GV410",
                f"{method} reads memory that nobody wrote: {of}{place} is NaN where fresh memory holds NaN",
                hint=_HINT,
                input=name if of else None,
            )
    return None


def _by_itself(
    sample: Sample, plain: Returned[tuple[Tensor, Tensor]], filled: list[tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Which of (result, gradient) is NaN whatever is in memory.

    Ordinary memory may hold the NaN of an earlier call, so where that could be it, more calls are asked.
    """
    runs = [plain.value]
    for _ in range(MORE_CALLS):
        if not any((_nan_in_all(filled, n) & _nan_in_all(runs, n)).any() for n in (0, 1)):
            break
        _overwrite(sample)
        again = _run(sample, fill=False)
        if isinstance(again, Returned):
            runs.append(again.value)
    return _nan_in_all(runs, 0), _nan_in_all(runs, 1)


def _nan_in_all(runs: list[tuple[Tensor, Tensor]], number: int) -> Tensor:
    return torch.stack([run[number].isnan() for run in runs]).all(dim=0)


def _overwrite(sample: Sample) -> None:
    """Leave ones in memory of the sizes that the next call will ask for."""
    blocks = (*sample.inputs.blocks, *sample.problem.outputs.blocks)
    held = [torch.ones(b.shape, dtype=b.dtype, device=b.device) for b in blocks for _ in range(COPIES)]
    del held


def _otherwise(base: Verified, ran: _Ran) -> Finding | None:
    """What integers and masks that nobody wrote do: they hold no NaN."""
    said = "memory is read that nobody wrote: "
    if isinstance(ran, Raised):
        if not is_accident(ran.error):
            return None
        said += f"{ran.error.type} is raised"
        return base.finding("GV410", f"{said} once fresh integers are large", hint=_HINT, raised=ran.error)
    values, gradient = ran.value
    moved = base.forward_difference(base.sample.problem.outputs.unflatten(values))
    off = moved or base.unrepeated(gradient)
    if off is None:
        return None
    of = "" if moved else "the gradient of "
    where = f"{of}{off.place} is {off.values} once fresh integers are large"
    return base.finding("GV410", said + where, hint=_HINT, input=None if moved else off.name)


def _differs(base: Verified, ran: _Ran) -> bool:
    if isinstance(ran, Raised):
        return True
    values, gradient = ran.value
    moved = base.forward_difference(base.sample.problem.outputs.unflatten(values))
    return moved is not None or base.unrepeated(gradient) is not None


def _run(sample: Sample, *, fill: bool) -> _Ran:
    """A fresh call, its results as they were before another call could touch them."""
    outputs = sample.problem.outputs
    grad_outputs = outputs.unflatten(cotangents(sample))
    with filled_memory(fill=fill):
        call = called(sample)
        if isinstance(call, Raised):
            return call
        values = guard.call(outputs.flatten, [o.detach().clone() for o in call.value.outputs])
        if isinstance(values, Raised):
            return values
        result = backward(sample, call.value, grad_outputs)
    if isinstance(result, Raised):
        return result
    return Returned((values.value, sample.inputs.flatten(result.value)))


def _output_names(sample: Sample) -> tuple[str, ...]:
    positions = sample.problem.output_positions
    return tuple(f"output {p}" if len(positions) > 1 else "y" for p in positions)


def _place(layout: Layout, names: tuple[str, ...], entry: int) -> tuple[str, str]:
    position = layout.block_of(entry)
    return indexed(names[position], layout.blocks[position].index(entry)), names[position]
