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
from gradverify.verifier.witnesses.open_entries import BOTH, OPEN, UNSEEN, UNTRIED, WRONG, Open
from gradverify.verifier.witnesses.proof import pairs_of
from gradverify.verifier.witnesses.rounding import survives_float32

SMALL = 1e-3
"""Share of the largest derivative below which an error is told as a share of that."""


def answers(c: Open) -> dict[tuple[int, int], Answer]:
    """An answer for each (output, input)."""
    found: dict[tuple[int, int], Answer] = {pair: Right() for pair in pairs_of(c.asked.problem)}
    numbers = {b.start: n for n, b in enumerate(c.inputs.blocks) if b.stop > b.start}
    for o, rows, own in c.blocks():
        found[o, numbers[own.start]] = _answer(c, o, rows, own)
    return found


def _answer(c: Open, o: int, rows: Tensor, own: slice) -> Answer:
    block = c.state[rows][:, own]
    wrong = (block == WRONG) | (block == BOTH)
    if bool(wrong.any()):
        return _wrong(c, rows, own, block, wrong)
    rounded = c.rounded[rows][:, own]
    if bool((block == OPEN).any()):
        reason = c.reasons.get((o, own.start)) or _reason(c, rows, own, block == OPEN)
        entry = _entries(c, rows, own, block == OPEN)[:1]
        return Unknown(reason, mismatch=True, entry=entry[0] if entry else None)
    unseen = block == UNSEEN
    if bool(unseen.any()):
        if not c.asked.declared and bool(rounded.any()) and not c.values.steps.is_short:
            marked = _wrong(c, rows, own, block, rounded)
            return replace(marked, rounded=True)
        reason = Reason.ROUNDING if bool(rounded.any()) else _reason(c, rows, own, unseen)
        told = c.reasons.get((o, own.start), reason)
        if told is Reason.BUDGET or (c.theirs is None and bool(unseen.all())):
            # More calls would tell nothing of a staircase, nor of noise.
            measured = [k for k in c.slopes if own.start <= k < own.stop]
            noisy = bool((c.state[rows][:, measured] == UNSEEN).any())
            told = Reason.SIXTEEN_BITS if c.asked.sixteen else reason if noisy else told
            return Unknown(told, mismatch=False)
        return NotJudged(told, int(unseen.sum()), whole=bool(unseen.all()))
    return _imprecise(c, rows, own) or Right(_visible(c, rows, own))


def _imprecise(c: Open, rows: Tensor, own: slice) -> Imprecise | None:
    lost = c.lost[rows][:, own]
    if not bool(lost.any()):
        return None
    assert c.theirs is not None  # noqa: S101 - for the type checker
    mine, theirs = c.mine[rows][:, own], c.theirs[rows][:, own]
    size = theirs.abs().clamp_min(SMALL * float(theirs.abs().nan_to_num(0.0).max())).clamp_min(1e-300)
    share = ((mine - theirs).abs() / size)[lost]
    unit = (torch.arange(len(c.u))[rows] < c.count)[:, None]
    told = (mine != 0) & ~survives_float32(theirs) & unit
    short = bool(survives_float32(mine)[told].all()) and int(told.sum()) > 1
    return Imprecise(float(share.max()), _entries(c, rows, own, lost), int(lost.sum()), lost.numel(), short)


def _visible(c: Open, rows: Tensor, own: slice) -> float | None:
    measured = [k for k in c.slopes if own.start <= k < own.stop]
    agreed = c.theirs is not None and not c.asked.hides and not bool(c.apart[rows][:, own].any())
    if not measured or agreed:
        return c.asked.seen
    size, error = c.value[rows][:, measured].abs(), c.error[rows][:, measured]
    known = (size > SMALL * size.nan_to_num(0.0).max()) & error.isfinite()
    return max(float((error / size)[known].median()), c.asked.seen) if bool(known.any()) else None


def _reason(c: Open, rows: Tensor, own: slice, at: Tensor) -> Reason:
    if not bool(c.values.centre.isfinite().all()):
        return Reason.NO_VALUE
    if c.asked.sixteen:
        return Reason.SIXTEEN_BITS
    error = c.error[rows][:, own][at]
    if error.numel() and not bool(error.isfinite().any()):
        return Reason.DIVERGES
    return Reason.HIDDEN if c.asked.hides else Reason.NOISE


def _wrong(c: Open, rows: Tensor, own: slice, block: Tensor, wrong: Tensor) -> Wrong:
    expected = c.value[rows][:, own]
    looked_at = int((block != UNTRIED).sum())
    known = expected.abs()[expected.isfinite()]
    nonfinite = ~c.mine[rows][:, own].isfinite() & wrong
    unit = torch.arange(len(c.u))[rows] < c.count
    whole = bool(unit.any()) and c.theirs is not None and bool(wrong[unit].any())
    shown = wrong & unit[:, None] if bool(wrong[unit].any()) else wrong
    return Wrong(
        _entries(c, rows, own, shown),
        int(shown.sum()),
        looked_at if not bool(unit.any()) else int((block[unit] != UNTRIED).sum()),
        float(known.max()) if known.numel() else 0.0,
        both=bool((block == BOTH).any()),
        nonfinite=bool(nonfinite.sum() == wrong.sum()),
        kink=bool((c.kinks[rows][:, own] & wrong).any()),
        smooth=c.theirs is not None and not bool(c.rough[rows[: len(c.rough)].nonzero()[:, 0]].any()),
        missing=not bool(c.mine[rows][:, own].any()),
        matrices=(c.mine[rows][:, own][unit], expected[unit], wrong[unit]) if whole else None,
    )


def _entries(c: Open, rows: Tensor, own: slice, at: Tensor) -> tuple[Entry, ...]:
    """The worst of some entries, those that were measured first."""
    mine, value, error = (t[rows][:, own] for t in (c.mine, c.value, c.error))
    numbers = rows.nonzero()[:, 0].tolist()
    off = (mine - value).abs().nan_to_num(torch.inf, torch.inf, torch.inf)
    places = at.nonzero().tolist()
    places.sort(key=lambda p: -float(off[p[0], p[1]]))
    return tuple(
        Entry(
            numbers[i] if numbers[i] < c.count else c.single.get(numbers[i]),
            own.start + j,
            float(mine[i, j]),
            float(value[i, j]),
            float(error[i, j].nan_to_num(0.0, 0.0)),
        )
        for i, j in places[:WORST]
    )
