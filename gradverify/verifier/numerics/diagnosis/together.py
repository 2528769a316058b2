"""Causes of several gradients of one call, seen together: one mistake has many gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradverify.verifier.numerics.diagnosis.cause import Cause, Strength
from gradverify.verifier.numerics.diagnosis.evidence import Pairs
from gradverify.verifier.numerics.diagnosis.factor import of_a_literal
from gradverify.verifier.numerics.diagnosis.paths.search import altered_as_elsewhere

Diagnosed = tuple[Cause | None, Pairs]


def together(diagnosed: Sequence[Diagnosed]) -> list[Cause | None]:
    """The causes, where they differ those of one mistake, if one part of forward or one change tells all.

    What is lost on the way to several gradients may leave nothing of one of them, as if an output were
    ignored, and of another one a multiple, which some expression gives by chance.
    """
    causes = [cause for cause, _ in diagnosed]
    if len({cause.name for cause in causes if cause is not None}) < 2:
        return causes
    changes = {cause.changes if cause is not None else () for cause in causes}
    told = next((cause for cause in causes if cause is not None and cause.kind == "edit"), None)
    if told is not None and len(changes) == 1:
        return [told] * len(causes)
    return [_one_of_all(cause, pairs, causes) for cause, pairs in diagnosed]


def _one_of_all(cause: Cause | None, pairs: Pairs, others: Sequence[Cause | None]) -> Cause | None:
    """What is lost on the way to others, or the change that mends them, where it explains this one."""
    if cause is None or not _may_be_part_of_another(cause, pairs):
        return cause
    other = altered_as_elsewhere(pairs)
    if other is not None:
        return replace(other, changes=cause.changes)
    same = [one for one in others if one is not None and one.changes == cause.changes != ()]
    if all(one is not None and one in same for one in others) and cause.changes[0].cause != cause.name:
        return Cause(cause.changes[0].cause, Strength.WEAK, kind="edit", changes=cause.changes)
    return cause


def _may_be_part_of_another(cause: Cause, pairs: Pairs) -> bool:
    if cause.where is not None or cause.kind == "edit" or pairs[0].point.order > 1:
        return False
    by_literal = cause.name == "constant-factor" and of_a_literal(pairs[0], cause.law)
    by_data = cause.name == "chain-factor" and cause.strength is Strength.WEAK
    return cause.name == "ignored-output" or by_literal or by_data
