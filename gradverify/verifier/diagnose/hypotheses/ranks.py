"""What only several ranks get wrong: a reduction too few or too many, the part of another rank."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradverify.verifier.diagnose.evidence import (
    Cause,
    Explanation,
    Pair,
    Pairs,
    of_gradient,
    times_too_large,
)
from gradverify.verifier.diagnose.hypotheses.factor import SAME_FACTOR, factor_of

Predicted = Callable[[Pair], Explanation | None]
"""What backward gives, if the hypothesis holds, from the true Jacobian; None where it says nothing."""


def over_ranks(pairs: Pairs) -> Cause | None:
    """The first that explains every entry of every point; one rank alone explains nothing."""
    if any(pair.point.order > 1 for pair in pairs) or all(pair.point.of_ranks is None for pair in pairs):
        return None
    name = f"`{pairs[0].name}`"
    factor = _factor_of_ranks(pairs)
    if factor is not None:
        large = "Is it reduced over the ranks once too often, or is a mean taken for a sum?"
        small = "Is it divided by the number of ranks, or not reduced over them?"
        what = f"{of_gradient(pairs[0])} {times_too_large(factor)} at every entry"
        return Cause(
            "constant-factor",
            f"{what}: the factor is the number of ranks",
            large if factor > 1 else small,
            factor=factor,
        )
    if _sum_is_right(pairs):
        return Cause(
            "missing-reduction",
            f"each rank returns its own part of the gradient of {name}: their sum over the ranks is right",
            f"Reduce it in backward (all_reduce), or declare {name} with `gradient: partial`.",
        )
    for cause, what, advice, predicted in HYPOTHESES:
        if _holds(pairs, predicted):
            return Cause(cause, f"{of_gradient(pairs[0])} {what}", advice)
    return None


def _sum_is_right(pairs: Pairs) -> bool:
    """Whether what all ranks return is right together, and no rank's alone."""

    def summed(pair: Pair) -> Explanation | None:
        ranks = pair.point.of_ranks
        if ranks is None or ranks.columns[pair.source]:
            return None
        others = torch.stack([pair.cut(one) for one in ranks.claimed]).sum(0) - pair.cut(ranks.claimed[0])
        return pair.true - others, pair.bound

    return _holds(pairs, summed)


def _factor_of_ranks(pairs: Pairs) -> float | None:
    """The factor of the first wrong point, where each is its number of ranks or one over it."""
    found = []
    for pair in pairs:
        ranks = pair.point.of_ranks
        world = 1 if ranks is None else len(ranks.claimed)
        c = factor_of(pair.claimed[pair.known], pair.true[pair.known])
        if c is None:
            continue
        if not pair.explained_by(c * pair.true, abs(c) * pair.bound):
            return None
        found.append((world, c))
    for law in (float, lambda world: 1 / world):
        if all(abs(c - law(world)) <= SAME_FACTOR * law(world) for world, c in found):
            return next((c for world, c in found if world > 1), None)
    return None


def _holds(pairs: Pairs, predicted: Predicted) -> bool:
    """Whether a hypothesis explains every point of several ranks, and some of them is wrong."""
    explained = [(pair, predicted(pair)) for pair in pairs if pair.point.of_ranks is not None]
    if not any(pair.is_wrong for pair, _ in explained):
        return False
    return all(one is not None and pair.explained_by(*one) for pair, one in explained)


def _by_rank(pair: Pair, matrix: Tensor) -> list[Tensor] | None:
    """The columns of each rank; None where they do not have as many."""
    ranks = pair.point.of_ranks
    columns = () if ranks is None else ranks.columns[pair.source]
    if not columns or len({len(one) for one in columns}) > 1:
        return None
    return [matrix[:, one] for one in columns]


def _back(pair: Pair, parts: list[Tensor]) -> Tensor:
    """The parts of all ranks as a matrix."""
    ranks = pair.point.of_ranks
    whole = torch.zeros_like(pair.true)
    for columns, part in zip(() if ranks is None else ranks.columns[pair.source], parts, strict=True):
        whole[:, columns] = part
    return whole


def _summed(pair: Pair) -> Explanation | None:
    """Every rank gets the sum of the gradients of all."""
    true, bound = _by_rank(pair, pair.true), _by_rank(pair, pair.bound)
    if true is None or bound is None:
        return None
    world = len(true)
    return _back(pair, [sum(true, torch.zeros(()))] * world), _back(
        pair, [sum(bound, torch.zeros(()))] * world
    )


def _of_own_outputs(pair: Pair) -> Explanation | None:
    """Every rank gets what comes through its own outputs, and nothing of the others'."""
    ranks = pair.point.of_ranks
    if ranks is None or not ranks.columns[pair.source] or not ranks.rows[pair.output]:
        return None
    own, bound = torch.zeros_like(pair.true), torch.zeros_like(pair.bound)
    for rows, columns in zip(ranks.rows[pair.output], ranks.columns[pair.source], strict=True):
        own[rows[:, None], columns] = pair.true[rows[:, None], columns]
        bound[rows[:, None], columns] = pair.bound[rows[:, None], columns]
    return own, bound


def _shifted(step: int) -> Predicted:
    """Every rank gets the gradient of another one, so many further in a ring."""

    def predicted(pair: Pair) -> Explanation | None:
        true, bound = _by_rank(pair, pair.true), _by_rank(pair, pair.bound)
        if true is None or bound is None:
            return None
        ring = [(rank + step) % len(true) for rank in range(len(true))]
        return _back(pair, [true[k] for k in ring]), _back(pair, [bound[k] for k in ring])

    return predicted


HYPOTHESES: tuple[tuple[str, str, str, Predicted], ...] = (
    (
        "missing-reduction",
        "lacks what comes through the outputs of other ranks",
        "Reduce it in backward, or send back to each rank what it sent.",
        _of_own_outputs,
    ),
    ("extra-reduction", "is on each rank the sum over all ranks", "Leave the reduction out.", _summed),
    *(
        ("other-rank", "is on each rank that of another rank", "Send it the other way round.", _shifted(step))
        for step in (1, -1, 2, -2)
    ),
)
