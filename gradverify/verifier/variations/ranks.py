"""What only ranks have: one that comes late to every collective, and a group that is not the world."""

from __future__ import annotations

from dataclasses import replace

from gradverify.model import Finding, RaisedError
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.of_ranks import OfRanks
from gradverify.verifier.ranks.across import Across
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
    if across is None or base.sample.case.world < 2:
        return Varied()
    for rank in range(min(base.sample.case.world, 2)):
        with across.with_late(rank):
            found = _again(base, replace(LATE, when=LATE.when.format(rank)))
        if found is not None:
            return Varied((found,))
    return Varied()


def other_group(base: Verified) -> Varied:
    """GV724: the same ranks as a part of a larger world, where their numbers are others.

    An integer that is passed may be such a number: then there is no telling what it should be there.
    """
    across = base.sample.subject.across
    numbers = any(type(a.value) is int or isinstance(a.value, OfRanks) for a in base.sample.arguments)
    if across is None or across.in_other_group is None or numbers:
        return Varied()
    other: Across = across.in_other_group()
    problem = replace(base.sample.problem, function=other)
    moved = replace(base, sample=replace(base.sample, problem=problem))
    try:
        found = _again(moved, OTHER_GROUP)
    except OutOfStepError as error:
        raised = RaisedError("OutOfStepError", str(error))
        found = OTHER_GROUP.raised(base, raised, "the target", serious=True)
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
