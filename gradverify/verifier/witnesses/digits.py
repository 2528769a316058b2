"""Digits: differences that rounding explains, and those within the tolerance that it does not."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised
from gradverify.verifier.witnesses.answers import Reason
from gradverify.verifier.witnesses.claim import spread_of_rows
from gradverify.verifier.witnesses.open_entries import BOTH, OPEN, RIGHT, UNSEEN, WRONG, Open
from gradverify.verifier.witnesses.proof import DIGITS_LOST
from gradverify.verifier.witnesses.rounding import (
    EIGHT_BITS,
    OF_A_ROW,
    OF_FEW_BITS,
    OF_FLOAT32,
    SIXTEEN_BITS,
    Formats,
    explained,
)
from gradverify.verifier.witnesses.values import EPSILON

ROUNDINGS = 10.0
"""Spreads of both by which two right gradients may differ."""

MOST_ROUNDED = 3
"""Rows of which rounding is asked."""


def ask_for_rounding(c: Open) -> None:
    """Take back what the rounding of backward explains, or of derived where no slope was measured."""
    suspect = (c.state == WRONG) | (c.state == BOTH) | (c.state == OPEN)
    suspect &= c.mine.isfinite()
    c.rounded = torch.zeros_like(suspect)
    expected = torch.where(c.value.isfinite(), c.value, 0.0)
    off = ((c.mine - expected).abs() * suspect).nan_to_num(0.0)
    if c.asked.limited:  # what is beyond any rounding needs no asking
        beyond = off > explained(torch.full_like(off, torch.inf), c.mine, c.unseen()) + c.error
        suspect &= ~beyond
    rows = suspect.any(dim=1).nonzero()[:, 0].tolist()
    if not rows:
        return
    rows.sort(key=lambda k: -float(off[k].max() / (c.mine[k].abs().max() + 1e-300)))
    chosen = rows[:MOST_ROUNDED]
    moved = spread_of_rows(c.asked.problem, c.u[chosen], c.values.steps.epsilon)
    if moved is None:
        return
    witness = c.asked.witness
    theirs = None if witness is None else spread_of_rows(witness.problem, c.u[chosen], EPSILON)
    if theirs is not None:
        seen = torch.zeros_like(suspect)
        seen[:, list(c.slopes)] = True
        theirs[(seen & (c.error < off))[chosen]] = 0.0
        moved = torch.maximum(moved, theirs)
    allowed = explained(moved, c.mine[chosen], c.unseen() if c.asked.limited else None)
    held = suspect[chosen] & (off[chosen] <= allowed + c.error[chosen])
    if bool((suspect[chosen] & ~held).any()):
        for place, k in enumerate(chosen):
            c.rounded[k] = held[place]
        if not c.asked.declared and bool(held.any()):  # rows that were not asked stay open
            others = suspect.clone()
            others[chosen] = False
            c.state[others] = OPEN
    else:  # what explains the worst rows explains the others
        c.rounded = suspect
    c.state[c.rounded] = UNSEEN
    if c.theirs is not None and c.asked.limited and not c.asked.hides:
        # Equal to derived within rounding: it is right as far as there are digits.
        c.state[c.rounded & _within(c, chosen, allowed)] = RIGHT
    c.rounded &= off > c.unseen()


def _within(c: Open, chosen: Sequence[int], allowed: Tensor) -> Tensor:
    """Entries that are derived's, to what is allowed, or its share of their row."""
    assert c.theirs is not None  # noqa: S101 - for the type checker
    size = c.mine.abs().nan_to_num(0.0, 0.0, 0.0).amax(dim=1, keepdim=True)
    share = min(OF_A_ROW, float((allowed / size[list(chosen)].clamp_min(1e-300)).max()))
    return (c.mine - c.theirs).abs() <= (share * size).clamp_min(float(allowed.max()))


def look_for_lost_digits(c: Open) -> None:
    """Note what agrees with derived within the tolerance, and by more than the rounding of both does not."""
    c.lost = torch.zeros_like(c.apart)
    if c.theirs is None or c.asked.hides or c.values.steps.is_short or not c.asked.declared or c.asked.loops:
        return
    off = (c.mine - c.theirs).abs()
    middle = c.theirs.abs().median(dim=1, keepdim=True).values
    bar = c.asked.atol + c.values.steps.smallest + DIGITS_LOST * (c.theirs.abs() + middle)
    lost = (off > bar) & ~c.apart & c.theirs.isfinite()
    rows = lost.any(dim=1).nonzero()[:, 0].tolist()[:MOST_ROUNDED]
    witness = c.asked.witness
    if not rows or witness is None or bool(((c.state == WRONG) | (c.state == BOTH)).any()):
        return
    allowed = torch.zeros(len(rows), len(c.values.x), dtype=torch.float64)
    for problem in (c.asked.problem, witness.problem):
        moved = spread_of_rows(problem, c.u[rows], c.values.steps.epsilon)
        allowed += torch.inf if moved is None else ROUNDINGS * moved
    kept = lost[rows] & (off[rows] > allowed)
    c.lost[rows] = kept


def doubt_short_formats(c: Open) -> None:
    """Leave open what numbers that were kept in few bits on the way may be off by."""
    suspect = (c.state == WRONG) | (c.state == BOTH)
    if not bool(suspect.any()):
        return
    short = c.asked.formats | _formats_of_backward(c)
    few = bool(short & SIXTEEN_BITS)
    if not few and not (c.asked.kept_short and torch.float32 in short):
        return
    off = (c.mine - c.value).abs().nan_to_num(torch.inf, torch.inf, torch.inf)
    size = torch.maximum(c.mine.abs(), c.value.abs()).nan_to_num(0.0, 0.0, 0.0)
    for pair in c.pairs():
        slight = suspect[pair.at]
        # Numbers kept in 8 bits have one scale for a whole tensor.
        largest = size[pair.at].max() if short & EIGHT_BITS else size[pair.at].amax(dim=1, keepdim=True)
        if not c.asked.formats & EIGHT_BITS:  # else forward is a staircase, which has no slope
            slight = slight & (off[pair.at] <= (OF_FEW_BITS if few else OF_FLOAT32) * largest)
        if bool(slight.any()):
            c.state[pair.at] = torch.where(slight, OPEN, c.state[pair.at])
            c.reasons[pair.output, pair.own.start] = Reason.SIXTEEN_BITS if few else Reason.FLOAT32


def _formats_of_backward(c: Open) -> frozenset[torch.dtype]:
    """Short formats that some gradient has gone through."""
    with Formats() as seen:
        made = c.asked.problem.graph(c.asked.problem.primals)
        if isinstance(made, Raised):
            return frozenset()
        found = c.asked.problem.back_each(made.value, [c.outputs.unflatten(c.u[-1])])
    if isinstance(found, Raised):
        return frozenset()
    return frozenset(f for each in found.value for g in each if g is not None for f in seen.of(g))
