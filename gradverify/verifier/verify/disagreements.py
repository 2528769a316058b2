"""GV721 to GV723: values that all ranks must share, and ranks that wait for each other in vain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from gradverify.model import CasePoint, Finding, indexed
from gradverify.rules import rule
from gradverify.verifier.guard import NotJudgedError
from gradverify.verifier.numerics.problem import multi_index
from gradverify.verifier.questions.findings import number
from gradverify.verifier.questions.subject import Sample
from gradverify.verifier.ranks.across import Difference
from gradverify.verifier.ranks.world import OutOfStepError

HINTS = {
    "output": (
        "Is a reduction or a gather missing in forward? Where each rank is to have a value of its own, say "
        "`output_placement: local`, or `partial` where their sum is meant."
    ),
    "gradient": (
        "Is a reduction missing in backward? Where each rank is to return its part of the gradient, declare "
        "`gradient: partial` beside `placement: replicate`."
    ),
}


def disagreements(sample: Sample) -> Iterator[Finding]:
    """What ranks had different values of since this was last asked: one finding for each output and input."""
    across = sample.subject.across
    if across is None:
        return
    met, across.differences = across.differences, {}
    names = [a.name for a in sample.arguments if isinstance(a.value, Tensor)]
    for (what, position), difference in sorted(met.items()):
        is_output = what == "output"
        named = f"output {position}" if is_output else f"the gradient of `{names[position]}`"
        code = "GV721" if is_output else "GV722"
        yield Finding(
            code,
            rule(code).severity,
            f"{named} is not the same on every rank: {_where(difference)}",
            hint=HINTS[what],
            case=sample.where,
            output=position if is_output else None,
            input=None if is_output else names[position],
        )


def _where(difference: Difference) -> str:
    """The first entry that differs, on both ranks, in words."""
    one, other = difference.of_first, difference.of_rank
    if one.shape != other.shape or one.dtype != other.dtype:
        reported = f"{list(one.shape)} {one.dtype} on rank 0, {list(other.shape)} {other.dtype}"
        return f"{reported} on rank {difference.rank}".replace("torch.", "")
    at = int(one.ne(other).reshape(-1).int().argmax())
    place = indexed("", multi_index(at, one.shape))
    first, second = (_shown(t.reshape(-1)[at]) for t in (one, other))
    return f"{first} on rank 0, {second} on rank {difference.rank}{f', at {place}' if place else ''}"


def _shown(value: Tensor) -> str:
    plain: Any = value.item()
    return number(plain) if isinstance(plain, float) else str(plain)


def stopped_by(error: OutOfStepError | NotJudgedError, where: CasePoint | None) -> Finding:
    """Why nothing more was judged: outputs that do not lie on the ranks as the spec says, or ranks that wait.

    Of these none answers any more.
    """
    if isinstance(error, NotJudgedError):
        return Finding("GV001", rule("GV001").severity, str(error), hint=error.hint, case=where)
    return Finding(
        "GV723",
        rule("GV723").severity,
        f"ranks are out of step: {error}",
        hint=(
            "Every rank of a group must enter the same collectives in the same order, whatever its own "
            "values and its number are. Nothing more was asked of this target."
        ),
        case=where,
    )
