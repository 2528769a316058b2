"""An open gradient: claim, derived and slopes, entry by entry, and what the entries of a pair add up to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised
from gradverify.verifier.witnesses.answers import (
    Answer,
    Asked,
    Entry,
    Imprecise,
    NotJudged,
    Numbers,
    Reason,
    Right,
    Unknown,
    Wrong,
    largest_of,
    worst_of,
)
from gradverify.verifier.witnesses.claim import units
from gradverify.verifier.witnesses.proof import Proof, differing, pairs_of, typical_of
from gradverify.verifier.witnesses.rounding import FACTOR, finite_part, survives_float32
from gradverify.verifier.witnesses.values import Slope, alone, probe

MOST_ROWS = 32
"""Rows up to which a Jacobian is built row by row; of more, grad_outputs of random entries stand for them."""

WITH_ALL_DIGITS = 2**0.5
"""Factor of numbers of twelve binary digits: in no product with it is a cast to float32 exact."""

MOST_ENTRIES = 2**22
"""Entries of such a Jacobian."""

RIGHT, WRONG, BOTH, OPEN, UNSEEN, TORN, UNTRIED = range(7)
"""What is known of an entry: right; wrong by one witness or by both; a mismatch that nothing decides; not
measurable; at a kink; not looked at."""

SMALL = 1e-3
"""Share of the largest derivative below which an error is told as a share of that."""


class Pair(NamedTuple):
    """An (output, input), and where its entries lie."""

    place: Numbers
    own: slice
    """The columns of the input."""
    rows: Tensor
    """Rows of `u` that weigh the output, by number."""
    at: tuple[Tensor, Tensor]
    """Index of the entries in any K × N."""


class Open:
    """One claim that neither a proof nor an agreement closes."""

    apart: Tensor
    """Entries in which claim and derived differ (bool, K × N)."""
    mine: Tensor
    theirs: Tensor | None
    state: Tensor
    rounded: Tensor
    """What rounding of backward explains, and is large enough to be seen."""
    lost: Tensor
    """What is off by less than the tolerance, and by more than rounding explains."""
    count: int
    """Rows of `u` that are those of the Jacobian; 0 of a large one."""
    u: Tensor
    """The grad_outputs of its rows (K × M)."""

    def __init__(self, asked: Asked, proof: Proof) -> None:
        self.asked, self.proof, self.values, self.steps = asked, proof, asked.values, asked.values.steps
        self.inputs, self.outputs = asked.values.inputs, asked.problem.outputs
        self.before = asked.counter.calls
        self.reasons: dict[Numbers, Reason] = {}
        self.spoke = {"values"}
        self.single: dict[int, int] = {}
        """Rows of the output that were asked for alone, by their place in `u`."""

    @property
    def left(self) -> int:
        """Calls that may still be made here."""
        return min(self.asked.budget.of_a_sample, self.asked.budget.left) - self.spent

    @property
    def spent(self) -> int:
        """Calls that were made of user code here."""
        return self.asked.counter.calls - self.before

    def rows(self) -> Raised | None:
        """Both gradients for unit rows, as far as these are few, and for a dense grad_output of each output.

        A backward that is not linear agrees at one kind and not at the other.
        """
        size, width = self.outputs.size, len(self.values.x)
        self.count = size if size <= MOST_ROWS and size * width <= MOST_ENTRIES else 0
        dense = probe(size, self.asked.key + 5) * WITH_ALL_DIGITS
        if not self.count and self.proof.difference is not None:
            dense = self.proof.difference.cotangents[0]
        each = torch.stack([alone(dense, rows) for rows in self.outputs.slices])
        self.u = torch.cat([units(size), each]) if self.count else each
        self.owner = [*(self.outputs.block_of(k) for k in range(self.count)), *self.outputs.filled]
        mine = self.asked.claim.afresh().rows(self.u)
        if isinstance(mine, Raised):
            return mine
        self.mine, self.theirs = mine, self.asked.derived_rows(self.u)
        self.apart = torch.zeros_like(mine, dtype=torch.bool)
        self.state = torch.full(mine.shape, UNTRIED)
        self.value = torch.full_like(mine, torch.nan)
        if self.theirs is not None:
            self.spoke.add("derived")
            self.apart = differing(self.asked, mine, self.theirs, self.u)
            self.value = self.theirs.clone()
            if not self.asked.hides:
                self.state[~self.apart] = RIGHT
        self.error = torch.zeros_like(mine)
        self.rough = torch.ones(len(mine), dtype=torch.bool)
        """Rows whose gradient is another beside the point, as far as that was looked at."""
        self.kinks = torch.zeros_like(self.apart)
        self.ways: list[Tensor] = []
        self.nearby: list[Tensor] = []
        self.settled = torch.zeros_like(self.apart)
        """Entries at a tie, which no slope along one coordinate decides."""
        self.slopes: dict[int, Slope] = {}
        self.again: dict[int, Slope] = {}
        self.shortest: dict[int, Slope] = {}
        self.inside: dict[int, Tensor] = {}
        """Derived beside the end of a declared range (K), by the column that lies at it."""
        return None

    def way(self, key: int) -> Tensor:
        """A random direction (N)."""
        return probe(len(self.values.x), self.asked.key + key)

    def is_open(self, k: int, column: int) -> bool:
        """Whether derived does not agree there."""
        return self.theirs is None or bool(self.apart[k, column])

    @property
    def wrong(self) -> Tensor:
        """Entries that one witness refutes, or both (bool, K × N)."""
        return (self.state == WRONG) | (self.state == BOTH)

    @property
    def off(self) -> Tensor:
        """How far the claim is off (K × N); infinite where one of both is no number."""
        return (self.mine - self.value).abs().nan_to_num(torch.inf, torch.inf, torch.inf)

    def pairs(self) -> Iterator[Pair]:
        """Every (output, input) that has entries."""
        owners = torch.tensor(self.owner)
        for o in sorted(set(self.owner)):
            rows = (owners == o).nonzero()[:, 0]
            for i, own in zip(self.inputs.filled, self.inputs.slices, strict=True):
                yield Pair((o, i), own, rows, (rows[:, None], torch.arange(own.start, own.stop)))

    def measured_of(self, pair: Pair) -> list[int]:
        """Columns of a pair of which slopes were measured."""
        return [k for k in self.slopes if pair.own.start <= k < pair.own.stop]

    def unseen(self) -> Tensor:
        """What moves no output by more than the rounding of numbers of its size and of the input's (N)."""
        size = finite_part(self.values.centre.abs()).max()
        scale = self.values.scale.clamp_min(1e-300)
        return FACTOR * self.steps.epsilon * (1 + size / scale)

    def bar(self, k: int, column: int) -> float:
        """The tolerance at an entry, scaled by its row."""
        rows = self.mine[k : k + 1] if self.theirs is None else self.theirs[k : k + 1]
        middle = float(typical_of(rows, self.inputs)[0, column])
        here = abs(float(self.value[k, column]))
        absolute = self.steps.smallest + self.asked.atol * float(self.u[k].abs().sum())
        return self.asked.rtol * (here + middle) + absolute

    def weighed(self, found: Slope) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Value, error, low and high of each row of `u`."""
        finite = found.error.isfinite()
        value = self.u @ torch.where(finite, found.value, 0.0)
        error = self.u.abs() @ torch.where(finite, found.error, 0.0)
        unknown = ((self.u != 0) & ~finite).any(dim=1)
        half = self.u.abs() @ torch.where(found.kink, (found.high - found.low) / 2, 0.0)
        return value, torch.where(unknown, torch.inf, error), value - half, value + half

    def slope(self, column: int, share: float = 1.0, step: float = 0.0) -> Slope:
        """Per unit of the coordinate, by a share of the usual steps, or by one step alone."""
        v = self.values.unit(column)
        size = float(v[column].abs())
        if not size:  # held where it is, and its gradient must be zero; or not finite
            nothing = torch.zeros(self.outputs.size, dtype=torch.float64)
            is_held = self.values.held is not None and bool(self.values.held[column])
            return Slope(nothing, nothing if is_held else nothing + torch.inf, nothing, nothing)
        found = self.values.at_step(v, step) if step else self.values.slope(v, share)
        found = found.times(1 / size)
        if float(v[column]) < 0:
            found = Slope(-found.value, found.error, -found.high, -found.low)
        return found


def answers(c: Open) -> dict[Numbers, Answer]:
    """An answer for each (output, input)."""
    found: dict[Numbers, Answer] = dict.fromkeys(pairs_of(c.asked.problem), Right())
    return found | {pair.place: _answer(c, pair) for pair in c.pairs()}


def _answer(c: Open, pair: Pair) -> Answer:
    block, wrong = c.state[pair.at], c.wrong[pair.at]
    if wrong.any():
        return _wrong(c, pair, block, wrong)
    rounded = c.rounded[pair.at]
    is_open, unseen = block == OPEN, block == UNSEEN
    if is_open.any():
        reason = c.reasons.get(pair.place) or _reason(c, pair, is_open)
        return Unknown(reason, mismatch=True, entry=_entries(c, pair, is_open)[0])
    if unseen.any():
        if not c.asked.declared and rounded.any() and not c.steps.is_short:
            return replace(_wrong(c, pair, block, rounded), rounded=True)
        reason = Reason.ROUNDING if rounded.any() else _reason(c, pair, unseen)
        told = c.reasons.get(pair.place, reason)
        # Zeros that are right, as those beside a diagonal, say nothing of what the claim is elsewhere.
        claims = c.mine[pair.at] != 0
        whole = bool(unseen.all() or (claims[unseen].any() and not claims[~unseen].any()))
        if told is Reason.BUDGET or (c.theirs is None and whole):
            # More calls would tell nothing of a staircase, nor of noise.
            measured = c.measured_of(pair)
            noisy = bool((c.state[pair.rows][:, measured] == UNSEEN).any())
            told = Reason.SIXTEEN_BITS if c.asked.sixteen else reason if noisy else told
            return Unknown(told, mismatch=False)
        visible = None if whole else _visible(c, pair, ~unseen)
        return NotJudged(told, int(unseen.sum()), whole=whole, visible=visible)
    return _imprecise(c, pair) or Right(_visible(c, pair, ~unseen))


def _imprecise(c: Open, pair: Pair) -> Imprecise | None:
    lost = c.lost[pair.at]
    if not lost.any():
        return None
    assert c.theirs is not None  # noqa: S101 - for the type checker
    mine, theirs = c.mine[pair.at], c.theirs[pair.at]
    size = theirs.abs().clamp_min(SMALL * float(theirs.abs().nan_to_num(0.0).max())).clamp_min(1e-300)
    share = ((mine - theirs).abs() / size)[lost]
    told, unit = (mine != 0) & ~survives_float32(theirs), (pair.rows < c.count)[:, None]
    # What is kept in float32 shows in single entries, a cast of grad_output in those with all digits.
    parts = (survives_float32(mine)[told & unit], survives_float32(mine)[told & ~unit])
    short = any(len(part) > 1 and bool(part.all()) for part in parts)
    return Imprecise(float(share.max()), _entries(c, pair, lost), int(lost.sum()), lost.numel(), short)


def _visible(c: Open, pair: Pair, judged: Tensor) -> float | None:
    """The smallest error that would have been seen at the judged entries of a pair."""
    measured = c.measured_of(pair)
    agreed = c.theirs is not None and not c.asked.hides and not c.apart[pair.at].any()
    if not measured or agreed:
        return c.asked.seen
    size, error = c.value[pair.rows][:, measured].abs(), c.error[pair.rows][:, measured]
    known = (size > SMALL * size.nan_to_num(0.0).max()) & error.isfinite()
    known &= judged[:, [k - pair.own.start for k in measured]]
    return max(float((error / size)[known].median()), c.asked.seen) if known.any() else None


def _reason(c: Open, pair: Pair, at: Tensor) -> Reason:
    if not c.values.centre.isfinite().all():
        return Reason.NO_VALUE
    if c.asked.sixteen:
        return Reason.SIXTEEN_BITS
    error = c.error[pair.at][at]
    if error.numel() and not error.isfinite().any():
        return Reason.DIVERGES
    return Reason.HIDDEN if c.asked.hides else Reason.NOISE


def _wrong(c: Open, pair: Pair, block: Tensor, wrong: Tensor) -> Wrong:
    mine, expected = c.mine[pair.at], c.value[pair.at]
    unit = pair.rows < c.count
    in_rows = bool(wrong[unit].any())
    shown = wrong & unit[:, None] if in_rows else wrong
    looked_at = block[unit] if unit.any() else block
    return Wrong(
        _entries(c, pair, shown),
        int(shown.sum()),
        int((looked_at != UNTRIED).sum()),
        largest_of(expected),
        both=bool((block == BOTH).any()),
        nonfinite=not mine[wrong].isfinite().any(),
        kink=bool((c.kinks[pair.at] & wrong).any()),
        smooth=c.theirs is not None and not c.rough[pair.rows[pair.rows < len(c.rough)]].any(),
        missing=not mine.any(),
        matrices=(mine[unit], expected[unit], wrong[unit]) if in_rows and c.theirs is not None else None,
    )


def _entries(c: Open, pair: Pair, at: Tensor) -> tuple[Entry, ...]:
    """The worst of some entries, those that were measured first."""
    mine, value, error = (t[pair.at] for t in (c.mine, c.value, c.error))
    numbers = pair.rows.tolist()
    return tuple(
        Entry(
            numbers[i] if numbers[i] < c.count else c.single.get(numbers[i]),
            pair.own.start + j,
            float(mine[i, j]),
            float(value[i, j]),
            float(error[i, j].nan_to_num(0.0, 0.0)),
        )
        for i, j in worst_of(c.off[pair.at], at)
    )
