"""A gradient that is open: claim, derived and slopes, entry by entry, and what is known of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised
from gradverify.verifier.witnesses.answers import Asked, Reason
from gradverify.verifier.witnesses.claim import units
from gradverify.verifier.witnesses.proof import Proof, differing, typical_of
from gradverify.verifier.witnesses.rounding import FACTOR
from gradverify.verifier.witnesses.values import Slope, alone, probe

MOST_ROWS = 32
"""Rows up to which a Jacobian is built row by row; of more, grad_outputs of random entries stand for them."""

WITH_ALL_DIGITS = 4 / 3
"""Factor of numbers of twelve binary digits: a cast to float32 in backward shows in the product."""

MOST_ENTRIES = 2**22
"""Entries of such a Jacobian."""

RIGHT, WRONG, BOTH, OPEN, UNSEEN, TORN, UNTRIED = range(7)
"""What is known of an entry: right; wrong by one witness or by both; a mismatch that nothing decides; not
measurable; at a kink; not looked at."""


class Pair(NamedTuple):
    """An (output, input), and where its entries lie."""

    output: int
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
        self.asked, self.proof, self.values = asked, proof, asked.values
        self.inputs, self.outputs = asked.values.inputs, asked.problem.outputs
        self.before = calls(asked)
        self.reasons: dict[tuple[int, int], Reason] = {}
        self.spoke = {"values"}
        self.single: dict[int, int] = {}
        """Rows of the output that were asked for alone, by their place in `u`."""

    @property
    def left(self) -> int:
        """Calls that may still be made here."""
        spent = calls(self.asked) - self.before
        return min(self.asked.budget.of_a_sample, self.asked.budget.left) - spent

    def rows(self) -> Raised | None:
        """Both gradients for unit rows, as far as these are few, and for a dense grad_output of each output.

        A backward that is not linear agrees at one kind and not at the other.
        """
        size, width = self.outputs.size, len(self.values.x)
        self.count = size if size <= MOST_ROWS and size * width <= MOST_ENTRIES else 0
        dense = probe(size, self.asked.key + 5) * WITH_ALL_DIGITS
        if not self.count and self.proof.difference is not None:
            dense = self.proof.difference.cotangents[0][0]
        each = torch.stack([alone(dense, rows) for rows in self.outputs.slices])
        self.u = torch.cat([units(size), each]) if self.count else each
        full = [o for o, b in enumerate(self.outputs.blocks) if b.stop > b.start]
        self.owner = [*(self.outputs.block_of(k) for k in range(self.count)), *full]
        mine = self.asked.claim.afresh().rows(self.u)
        if isinstance(mine, Raised):
            return mine
        self.mine = mine
        witness = self.asked.witness
        theirs = witness.rows(self.u) if witness is not None else None
        self.theirs = None if theirs is None or isinstance(theirs, Raised) else theirs
        if self.theirs is not None:
            self.spoke.add("derived")
            self.apart = differing(self.asked, self.mine, self.theirs, self.u)
        else:
            self.apart = torch.zeros_like(self.mine, dtype=torch.bool)
        self.state = torch.full(self.mine.shape, UNTRIED)
        if self.theirs is not None and not self.asked.hides:
            self.state[~self.apart] = RIGHT
        self.value = (
            self.mine.new_full(self.mine.shape, torch.nan) if self.theirs is None else self.theirs.clone()
        )
        self.error = torch.zeros_like(self.mine)
        self.rough = torch.ones(len(self.mine), dtype=torch.bool)
        """Rows whose gradient is another beside the point, as far as that was looked at."""
        self.kinks = torch.zeros_like(self.mine, dtype=torch.bool)
        self.ways: list[Tensor] = []
        self.nearby: list[Tensor] = []
        self.settled = torch.zeros_like(self.apart)
        """Entries at a tie, which no slope along one coordinate decides."""
        self.slopes: dict[int, Slope] = {}
        self.again: dict[int, Slope] = {}
        self.shortest: dict[int, Slope] = {}
        return None

    def is_open(self, k: int, column: int) -> bool:
        """Whether derived does not agree there."""
        return self.theirs is None or bool(self.apart[k, column])

    def pairs(self) -> Iterator[Pair]:
        """Every (output, input) that has entries."""
        owners = torch.tensor(self.owner)
        for o in sorted(set(self.owner)):
            rows = (owners == o).nonzero()[:, 0]
            for own in self.inputs.slices:
                yield Pair(o, own, rows, (rows[:, None], torch.arange(own.start, own.stop)))

    def unseen(self) -> Tensor:
        """What moves no output by more than the rounding of numbers of its size and of the input's (N)."""
        size = self.values.centre.abs().nan_to_num(0.0, 0.0, 0.0).max()
        scale = self.values.scale.clamp_min(1e-300)
        return FACTOR * self.values.steps.epsilon * (1 + size / scale)

    def start_of(self, column: int) -> int:
        """Where the input of a column begins."""
        return next(int(s.start) for s in self.inputs.slices if s.start <= column < s.stop)

    def bar(self, k: int, column: int) -> float:
        """The tolerance at an entry, scaled by its row."""
        rows = self.mine[k : k + 1] if self.theirs is None else self.theirs[k : k + 1]
        middle = float(typical_of(rows, self.inputs)[0, column])
        here = abs(float(self.value[k, column]))
        absolute = self.values.steps.smallest + self.asked.atol * float(self.u[k].abs().sum())
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
            is_held = bool(self.values.held[column]) if self.values.held is not None else False
            return Slope(nothing, nothing if is_held else nothing + torch.inf, nothing, nothing)
        found = self.values.at_step(v, step) if step else self.values.slope(v, share)
        found = found.times(1 / size)
        if float(v[column]) < 0:
            found = Slope(-found.value, found.error, -found.high, -found.low)
        return found


def calls(asked: Asked) -> int:
    """So many were made of user code."""
    made: int = asked.counter.forward + asked.counter.backward
    return made
