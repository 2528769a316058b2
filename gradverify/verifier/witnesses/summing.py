"""What the entries of each (output, input) add up to."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gradverify.verifier.witnesses.answers import (
    WORST,
    Answer,
    Entry,
    Imprecise,
    NotJudged,
    Reason,
    Right,
    Unknown,
    Wrong,
)
from gradverify.verifier.witnesses.open_entries import BOTH, OPEN, UNSEEN, UNTRIED, WRONG, Open, Pair
from gradverify.verifier.witnesses.proof import pairs_of
from gradverify.verifier.witnesses.rounding import survives_float32

SMALL = 1e-3
"""Share of the largest derivative below which an error is told as a share of that."""


def answers(c: Open) -> dict[tuple[int, int], Answer]:
    """An answer for each (output, input)."""
    found: dict[tuple[int, int], Answer] = {pair: Right() for pair in pairs_of(c.asked.problem)}
    numbers = {b.start: n for n, b in enumerate(c.inputs.blocks) if b.stop > b.start}
    for pair in c.pairs():
        found[pair.output, numbers[pair.own.start]] = _answer(c, pair)
    return found


def _answer(c: Open, pair: Pair) -> Answer:
    block = c.state[pair.at]
    wrong = (block == WRONG) | (block == BOTH)
    if bool(wrong.any()):
        return _wrong(c, pair, block, wrong)
    rounded = c.rounded[pair.at]
    if bool((block == OPEN).any()):
        reason = c.reasons.get((pair.output, pair.own.start)) or _reason(c, pair, block == OPEN)
        entry = _entries(c, pair, block == OPEN)[:1]
        return Unknown(reason, mismatch=True, entry=entry[0] if entry else None)
    unseen = block == UNSEEN
    if bool(unseen.any()):
        if not c.asked.declared and bool(rounded.any()) and not c.values.steps.is_short:
            marked = _wrong(c, pair, block, rounded)
            return replace(marked, rounded=True)
        reason = Reason.ROUNDING if bool(rounded.any()) else _reason(c, pair, unseen)
        told = c.reasons.get((pair.output, pair.own.start), reason)
        if told is Reason.BUDGET or (c.theirs is None and bool(unseen.all())):
            # More calls would tell nothing of a staircase, nor of noise.
            measured = [k for k in c.slopes if pair.own.start <= k < pair.own.stop]
            noisy = bool((c.state[pair.rows][:, measured] == UNSEEN).any())
            told = Reason.SIXTEEN_BITS if c.asked.sixteen else reason if noisy else told
            return Unknown(told, mismatch=False)
        return NotJudged(told, int(unseen.sum()), whole=bool(unseen.all()))
    return _imprecise(c, pair) or Right(_visible(c, pair))


def _imprecise(c: Open, pair: Pair) -> Imprecise | None:
    lost = c.lost[pair.at]
    if not bool(lost.any()):
        return None
    assert c.theirs is not None  # noqa: S101 - for the type checker
    mine, theirs = c.mine[pair.at], c.theirs[pair.at]
    size = theirs.abs().clamp_min(SMALL * float(theirs.abs().nan_to_num(0.0).max())).clamp_min(1e-300)
    share = ((mine - theirs).abs() / size)[lost]
    unit = (pair.rows < c.count)[:, None]
    told = (mine != 0) & ~survives_float32(theirs) & unit
    short = bool(survives_float32(mine)[told].all()) and int(told.sum()) > 1
    return Imprecise(float(share.max()), _entries(c, pair, lost), int(lost.sum()), lost.numel(), short)


def _visible(c: Open, pair: Pair) -> float | None:
    measured = [k for k in c.slopes if pair.own.start <= k < pair.own.stop]
    agreed = c.theirs is not None and not c.asked.hides and not bool(c.apart[pair.at].any())
    if not measured or agreed:
        return c.asked.seen
    size, error = c.value[pair.rows][:, measured].abs(), c.error[pair.rows][:, measured]
    known = (size > SMALL * size.nan_to_num(0.0).max()) & error.isfinite()
    return max(float((error / size)[known].median()), c.asked.seen) if bool(known.any()) else None


def _reason(c: Open, pair: Pair, at: Tensor) -> Reason:
    if not bool(c.values.centre.isfinite().all()):
        return Reason.NO_VALUE
    if c.asked.sixteen:
        return Reason.SIXTEEN_BITS
    error = c.error[pair.at][at]
    if error.numel() and not bool(error.isfinite().any()):
        return Reason.DIVERGES
    return Reason.HIDDEN if c.asked.hides else Reason.NOISE


def _wrong(c: Open, pair: Pair, block: Tensor, wrong: Tensor) -> Wrong:
    expected = c.value[pair.at]
    looked_at = int((block != UNTRIED).sum())
    known = expected.abs()[expected.isfinite()]
    nonfinite = ~c.mine[pair.at].isfinite() & wrong
    unit = pair.rows < c.count
    whole = bool(unit.any()) and c.theirs is not None and bool(wrong[unit].any())
    shown = wrong & unit[:, None] if bool(wrong[unit].any()) else wrong
    return Wrong(
        _entries(c, pair, shown),
        int(shown.sum()),
        looked_at if not bool(unit.any()) else int((block[unit] != UNTRIED).sum()),
        float(known.max()) if known.numel() else 0.0,
        both=bool((block == BOTH).any()),
        nonfinite=bool(nonfinite.sum() == wrong.sum()),
        kink=bool((c.kinks[pair.at] & wrong).any()),
        smooth=c.theirs is not None and not bool(c.rough[pair.rows[pair.rows < len(c.rough)]].any()),
        missing=not bool(c.mine[pair.at].any()),
        matrices=(c.mine[pair.at][unit], expected[unit], wrong[unit]) if whole else None,
    )


def _entries(c: Open, pair: Pair, at: Tensor) -> tuple[Entry, ...]:
    """The worst of some entries, those that were measured first."""
    mine, value, error = (t[pair.at] for t in (c.mine, c.value, c.error))
    numbers = pair.rows.tolist()
    off = (mine - value).abs().nan_to_num(torch.inf, torch.inf, torch.inf)
    places = at.nonzero().tolist()
    places.sort(key=lambda p: -float(off[p[0], p[1]]))
    return tuple(
        Entry(
            numbers[i] if numbers[i] < c.count else c.single.get(numbers[i]),
            pair.own.start + j,
            float(mine[i, j]),
            float(value[i, j]),
            float(error[i, j].nan_to_num(0.0, 0.0)),
        )
        for i, j in places[:WORST]
    )
