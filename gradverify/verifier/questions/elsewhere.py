"""GV701: the same call on another device, where that runs repeat and memory is written is asked as well.

GV724: the same call of several ranks in a group that is not the world.
"""

from __future__ import annotations

from dataclasses import replace

from gradverify.model import Finding, RaisedError, Severity, Swept
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import OfRanks
from gradverify.verifier.questions.again import again, read_unwritten
from gradverify.verifier.questions.call import backward, called
from gradverify.verifier.questions.samples import placed_on
from gradverify.verifier.questions.subject import first_line
from gradverify.verifier.questions.verified import Difference, Variant, Varied, Verified, cotangents, known
from gradverify.verifier.questions.wording import count_of
from gradverify.verifier.ranks.world import OutOfStepError

OTHER_GROUP = Variant(
    "GV724",
    "in a process group that is not the whole world",
    "Pass the group on to every collective, and count ranks in it: dist.get_rank(group). `src` and `dst` are "
    "numbers in the world: dist.get_global_rank(group, 0).",
    is_mistake=lambda _: True,
)

HINT = (
    "On {here} it was verified against forward. Look for a kernel that differs on {there}: its index "
    "arithmetic, a block that is not synchronised, a constant, or the device it is launched on."
)

CPU_ONLY = "If it is meant for some devices alone, name them in its spec: `devices: [{kind}]`."

BACKWARD_HINT = "Allocate what backward needs where grad_output is: `torch.zeros(..., device=g.device)`."


def other_group(base: Verified) -> Varied:
    """GV724: the same in a part of a larger world. Not asked where an integer, maybe a rank, is passed."""
    across = base.sample.subject.across
    numbers = any(type(a.value) is int or isinstance(a.value, OfRanks) for a in base.sample.arguments)
    if across is None or across.in_other_group is None or numbers:
        return Varied()
    other = across.in_other_group()
    moved = replace(base.sample, problem=replace(base.sample.problem, function=other))
    said = f"ranks disagree on a value that they share {OTHER_GROUP.when}"
    try:
        found = OTHER_GROUP.judged(replace(base, sample=moved), called(moved))
        is_wrong = bool(other.differences)
    except OutOfStepError as error:
        found, is_wrong, said = None, True, f"{error}, {OTHER_GROUP.when}"
    if found is None and is_wrong:
        found = base.finding(OTHER_GROUP.code, said, hint=OTHER_GROUP.hint)
    return Varied.of(found)


def other_devices(base: Verified) -> Varied:
    """Every other device that the run asks for, up to the first where something is wrong."""
    swept = Swept()
    drawn = "it draws random numbers, and other devices draw others"
    for device in base.sample.subject.other_devices:
        findings = (_not_compared(base, device, drawn),) if base.draws else _on(base, device)
        if findings:
            return Varied(findings, swept)
        swept = swept.joined(Swept(devices=(device,)))
    return Varied(swept=swept)


def _on(base: Verified, device: str) -> tuple[Finding, ...]:
    placed = placed_on(device, base.sample)
    if isinstance(placed, Raised):
        return (_not_compared(base, device, "its inputs cannot be built there", placed.error),)
    sample = placed.value
    call = called(sample)
    if isinstance(call, Raised):
        return (_not_compared(base, device, "forward raises", call.error),)
    result = backward(sample, call.value, sample.problem.outputs.unflatten(cotangents(sample)))
    if isinstance(result, Raised):
        if result.error.deliberate:
            return (_not_compared(base, device, "backward raises", result.error),)
        said = f"backward raises {result.error.type} on {device}, where forward runs"
        said += f": {first_line(result.error.message)}"
        return (base.finding("GV701", said, hint=BACKWARD_HINT, raised=result.error),)
    there = known(sample)
    repeated = read_unwritten(sample) if there is None else again(there).findings
    unsteady = tuple(f for f in repeated if f.severity is not Severity.NOTE)
    if unsteady:
        return tuple(replace(f, message=f"on {device}, {f.message}") for f in unsteady)
    moved = base.forward_difference(call.value.outputs)
    different = moved or base.difference(result.value)
    if different is not None and moved is None and there is not None:  # where its formula rounds otherwise
        different = different if there.difference(base.inputs.unflatten(base.gradient)) else None
    return () if different is None else (_differs(base, device, different, of_forward=moved is not None),)


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
        hint=HINT.format(here=here, there=device),
        input=None if of_forward else found.name,
        output=base.sample.problem.output_positions[found.block] if of_forward else None,
        entries=found.entries,
    )


def _not_compared(base: Verified, device: str, why: str, error: RaisedError | None = None) -> Finding:
    kind = base.sample.subject.settings.device.partition(":")[0]
    why += "" if error is None else f": {error.type}: {first_line(error.message)}"
    said = f"not compared with {device}: {why}"
    return base.finding("GV109", said, hint=CPU_ONLY.format(kind=kind), raised=error)
