"""GV701: the same call on another device gives the same result and the same gradient.

The verified sample is placed on the other device, value for value, and what the variations of calls ask of
it is asked there too: that runs repeat, and that no memory is read which nobody wrote.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gradverify.model import Finding, RaisedError, Severity, Swept
from gradverify.verifier import guard
from gradverify.verifier.checks.subject import Sample, arguments_at, first_line
from gradverify.verifier.checks.variations.repetition import repeated_runs
from gradverify.verifier.checks.variations.running import backward, called
from gradverify.verifier.checks.variations.unwritten import read_unwritten
from gradverify.verifier.checks.variations.variation import Varied
from gradverify.verifier.checks.variations.verified import Difference, Verified, cotangents, verified
from gradverify.verifier.checks.wording import count_of
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.calling import Gradients, Tensors
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.problem import CallProblem

_HINT = (
    "On {here} it was verified against forward. Look for a kernel that is another one on {there}: its index "
    "arithmetic, a block that is not synchronised, a constant, or the device it is launched on."
)

_CPU_ONLY = "If it is meant for some devices alone, name them in its spec: `devices: [{kind}]`."


def other_devices(base: Verified) -> Varied:
    """Every other device that the run asks for, up to the first where something is wrong."""
    swept = Swept()
    for device in base.sample.subject.other_devices:
        findings = _judged(base, device)
        if findings:
            return Varied(findings, swept)
        swept = swept.joined(Swept(devices=(device,)))
    return Varied(swept=swept)


def _judged(base: Verified, device: str) -> tuple[Finding, ...]:
    if base.forward_draws or base.backward_draws:
        return (_not_compared(base, device, "it draws random numbers, and other devices draw others"),)
    placed = _placed(base.sample, device)
    if isinstance(placed, Raised):
        return (_not_compared(base, device, _said("its inputs cannot be built there", placed.error)),)
    sample = placed.value
    call = called(sample)
    if isinstance(call, Raised):
        return (_not_compared(base, device, _said("forward raises", call.error), call.error),)
    grad_outputs = sample.problem.outputs.unflatten(cotangents(sample))
    result = backward(sample, call.value, grad_outputs)
    if isinstance(result, Raised):
        return (_backward_raises(base, device, result.error),)
    unsteady = (*read_unwritten(sample), *_unrepeated(sample))
    if unsteady:
        return tuple(replace(f, message=f"on {device}, {f.message}") for f in unsteady)
    return _compared(base, device, sample, (call.value.outputs, result.value))


def _compared(
    base: Verified, device: str, sample: Sample, got: tuple[Tensors, Gradients]
) -> tuple[Finding, ...]:
    """Result and gradient of the call on the other device against those of the verified one."""
    outputs, gradients = got
    moved = base.forward_difference(outputs)
    if moved is not None:
        return (_differs(base, device, moved, ""),)
    off = base.difference(gradients, rounding_of=sample.problem)
    return () if off is None else (_differs(base, device, off, "the gradient of "),)


def _placed(sample: Sample, device: str) -> Returned[Sample] | Raised:
    """The same sample on another device: the arguments are built there, and given the same values."""
    subject = guard.call(sample.subject.on, device)
    if isinstance(subject, Raised):
        return subject
    arguments = arguments_at(subject.value, sample.case, sample.point, sample.draw)
    if isinstance(arguments, Raised):
        return arguments
    same = tuple(
        replace(there, value=here.value.to(device)) if isinstance(here.value, Tensor) else there
        for here, there in zip(sample.arguments, arguments, strict=True)
    )
    where = torch.device(device)
    problem = CallProblem(
        function=subject.value.call,
        arguments=same,
        output_positions=sample.problem.output_positions,
        outputs=Layout(tuple(replace(b, device=where) for b in sample.problem.outputs.blocks)),
        random_states=guard.RandomStates(sample.case.seed),
        counter=sample.problem.counter,
    )
    return Returned(replace(sample, subject=subject.value, arguments=same, problem=problem))


def _unrepeated(sample: Sample) -> tuple[Finding, ...]:
    """GV408 and GV410 there: a race shows on the device that has it."""
    base = verified(sample)
    found = () if base is None else repeated_runs(base).findings
    return tuple(f for f in found if f.severity is not Severity.NOTE)


def _differs(base: Verified, device: str, found: Difference, of: str) -> Finding:
    here = base.sample.subject.settings.device
    got, _, wanted = found.values.partition(" instead of ")
    return base.finding(
        "GV701",
        f"{of}{found.place} is {got} on {device} and {wanted} on {here}, at the same float64 inputs"
        + _how_many(found)
        + ("; that of the CPU is verified" if of and here == "cpu" else ""),
        hint=_HINT.format(here=here, there=device),
        input=found.name if of else None,
        output=None if of else base.sample.problem.output_positions[found.block],
        entries=found.entries,
    )


def _how_many(found: Difference) -> str:
    """Say how much of a tensor differs, where it is more than the one entry that is told."""
    entries = found.entries
    if entries is None or entries.wrong <= 1:
        return ""
    return f"; {count_of(entries.wrong, entries.checked)} differ"


def _backward_raises(base: Verified, device: str, error: RaisedError) -> Finding:
    if error.deliberate:
        return _not_compared(base, device, _said("backward raises", error), error)
    return base.finding(
        "GV701",
        f"backward raises {error.type} on {device}, where forward runs: {first_line(error.message)}",
        hint="Allocate what backward needs where grad_output is: `torch.zeros(..., device=g.device)`.",
        raised=error,
    )


def _not_compared(base: Verified, device: str, why: str, error: RaisedError | None = None) -> Finding:
    here = base.sample.subject.settings.device
    return base.finding(
        "GV109",
        f"not compared with {device}: {why}",
        hint=_CPU_ONLY.format(kind=here.partition(":")[0]),
        raised=error,
    )


def _said(what: str, error: RaisedError) -> str:
    return f"{what}: {error.type}: {first_line(error.message)}"
