"""What only ranks have: one that comes late to every collective, and a group that is not the world."""

from __future__ import annotations

from dataclasses import replace

from gradverify.model import Finding
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.of_ranks import OfRanks
from gradverify.verifier.ranks.world import OutOfStepError
from gradverify.verifier.variations.call import backward, called
from gradverify.verifier.variations.variation import Variant, Varied
from gradverify.verifier.variations.verified import Verified

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
