"""GV701: the same call on another device gives the same result and the same gradient.

The verified sample is placed on the other device, value for value, and what the variations of calls ask of
it is asked there too: that runs repeat, and that no memory is read that was never written.

What only ranks have: one that comes late to every collective, and a group that is not the world.
"""

from __future__ import annotations

from dataclasses import replace

from gradverify.model import Finding, RaisedError, Severity, Swept
from gradverify.verifier.checks.samples import placed_on
from gradverify.verifier.checks.subject import Sample, first_line
from gradverify.verifier.checks.wording import count_of
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import OfRanks
from gradverify.verifier.ranks.world import OutOfStepError
from gradverify.verifier.variations.call import backward, called
from gradverify.verifier.variations.repetition import repeated_runs
from gradverify.verifier.variations.uninitialized import read_unwritten
from gradverify.verifier.variations.verified import (
    Difference,
    Variant,
    Varied,
    Verified,
    cotangents,
    verified,
)

LATE = Variant(
    "GV410",
    "when rank {} comes late to every collective",
    "Work that was started with async_op=True must be waited for before its result is used or returned.",
)

OTHER_GROUP = Variant(
    "GV724",
    "in a process group that is not the whole world",
    "Pass the group on to every collective, and count ranks in it: dist.get_rank(group). `src` and `dst` are "
    "numbers in the world: dist.get_global_rank(group, 0).",
)


def late_ranks(base: Verified) -> Varied:
    """GV410: what is not waited for is not there yet where another rank comes late."""
    across = base.sample.subject.across
    if across is None:
        return Varied()
    for rank in range(min(base.sample.case.world, 2)):
        with across.with_late(rank):
            if found := _again(base, replace(LATE, when=LATE.when.format(rank))):
                return Varied((found,))
    return Varied()


def other_group(base: Verified) -> Varied:
    """GV724: the same in a part of a larger world. Not asked where an integer, maybe a rank, is passed."""
    across = base.sample.subject.across
    numbers = any(type(a.value) is int or isinstance(a.value, OfRanks) for a in base.sample.arguments)
    if across is None or across.in_other_group is None or numbers:
        return Varied()
    other = across.in_other_group()
    moved = replace(base.sample, problem=replace(base.sample.problem, function=other))
    try:
        found = _again(replace(base, sample=moved), OTHER_GROUP)
        if found is None and other.differences:
            said = f"ranks disagree on a value that they share {OTHER_GROUP.when}"
            found = base.finding(OTHER_GROUP.code, said, hint=OTHER_GROUP.hint)
    except OutOfStepError as error:
        found = base.finding(OTHER_GROUP.code, f"{error}, {OTHER_GROUP.when}", hint=OTHER_GROUP.hint)
    return Varied(() if found is None else (found,))


def _again(base: Verified, variant: Variant) -> Finding | None:
    """What another call gives that should give the same."""
    call = called(base.sample)
    if isinstance(call, Raised):
        return variant.raised(base, call.error, "forward", serious=True)
    result = backward(base.sample, call.value, base.grad_outputs())
    if isinstance(result, Raised):
        return variant.raised(base, result.error, serious=True)
    return variant.both(base, call.value.outputs, result.value)


_HINT = (
    "On {here} it was verified against forward. Look for a kernel that differs on {there}: its index "
    "arithmetic, a block that is not synchronised, a constant, or the device it is launched on."
)

_CPU_ONLY = "If it is meant for some devices alone, name them in its spec: `devices: [{kind}]`."

_BACKWARD_HINT = "Allocate what backward needs where grad_output is: `torch.zeros(..., device=g.device)`."


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
    if base.draws:
        return (_not_compared(base, device, "it draws random numbers, and other devices draw others"),)
    placed = placed_on(device, base.sample)
    if isinstance(placed, Raised):
        return (_not_compared(base, device, "its inputs cannot be built there", placed.error),)
    sample = placed.value
    call = called(sample)
    if isinstance(call, Raised):
        return (_not_compared(base, device, "forward raises", call.error),)
    result = backward(sample, call.value, sample.problem.outputs.unflatten(cotangents(sample)))
    if isinstance(result, Raised):
        return (_backward_raises(base, device, result.error),)
    unsteady = (*read_unwritten(sample), *_unrepeated(sample))
    if unsteady:
        return tuple(replace(f, message=f"on {device}, {f.message}") for f in unsteady)
    moved = base.forward_difference(call.value.outputs)
    off = None if moved else base.difference(result.value, rounding_of=sample.problem)
    different = moved or off
    return () if different is None else (_differs(base, device, different, of_forward=moved is not None),)


def _unrepeated(sample: Sample) -> tuple[Finding, ...]:
    """GV408 and GV410 there: a race shows on the device that has it."""
    base = verified(sample)
    found = () if base is None else repeated_runs(base).findings
    return tuple(f for f in found if f.severity is not Severity.NOTE)


def _differs(base: Verified, device: str, found: Difference, *, of_forward: bool) -> Finding:
    here = base.sample.subject.settings.device
    got, _, wanted = found.values.partition(" instead of ")
    what = f"{'' if of_forward else 'the gradient of '}{found.place}"
    said = f"{what} is {got} on {device} and {wanted} on {here}, at the same float64 inputs"
    if found.entries is not None and found.entries.wrong > 1:
        said += f"; {count_of(found.entries.wrong, found.entries.checked)} differ"
    if not of_forward and here == "cpu":
        said += "; that of the CPU is verified"
    return base.finding(
        "GV701",
        said,
        hint=_HINT.format(here=here, there=device),
        input=None if of_forward else found.name,
        output=base.sample.problem.output_positions[found.block] if of_forward else None,
        entries=found.entries,
    )


def _backward_raises(base: Verified, device: str, error: RaisedError) -> Finding:
    if error.deliberate:
        return _not_compared(base, device, "backward raises", error)
    said = f"backward raises {error.type} on {device}, where forward runs: {first_line(error.message)}"
    return base.finding("GV701", said, hint=_BACKWARD_HINT, raised=error)


def _not_compared(base: Verified, device: str, why: str, error: RaisedError | None = None) -> Finding:
    kind = base.sample.subject.settings.device.partition(":")[0]
    why += "" if error is None else f": {error.type}: {first_line(error.message)}"
    said = f"not compared with {device}: {why}"
    return base.finding("GV109", said, hint=_CPU_ONLY.format(kind=kind), raised=error)
