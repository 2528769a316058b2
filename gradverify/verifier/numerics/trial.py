"""One direction of the short proof, and what forward has along it: by two values; more where two are too few.

    two values:      2 J T = F₁ - F₋₁
    three values:   60 J T = 40 (F₁ - F₀) - 24 (F₋₁ - F₀) - (F₄ - F₀)
    four values:   120 J T = 64 (F₁ - F₋₁) - (F₄ - F₋₄)          where f bends too much for two
                    24 J T = 16 (F₁ - F₋₁) - (F₄ - F₋₄)          where it bends otherwise on either side of x
                     8 J T = F₄ - F₋₄                            where rounding is too much for two
    far away:      12 k J T = 8 (F_k - F_-k) - (F_2k - F_-2k)    where it is too much for these, too

(For the weights see Fornberg, *Generation of finite difference formulas*, 1988.) Whichever closes is a proof:
a residual below what is allowed says that a wrong gradient and the error of the difference cancel, which has
a probability of nothing for each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.central import FOUR_POINTS, Forward, Weighed, difference, value_at
from gradverify.verifier.numerics.certificate import LEVELS
from gradverify.verifier.numerics.flat import vector_of
from gradverify.verifier.numerics.problem import Gradients
from gradverify.verifier.numerics.quick_probes import Moves, Probe

TWO_VALUES = 2.0
"""The difference of two values is this times the derivative along T."""

THREE_VALUES = 60.0
"""That of three values."""

THIRD = 4.0
"""Where the third value lies, in steps: rounding is hardly more than that of two values there (0.82 to 0.71;
1.18 at two steps), and truncation no more than twice that at two steps."""

FOUR_VALUES = 120.0
"""That of four values, the outer ones as far away as the third. Truncation is h^4 · 2/15 of the fifth
derivative."""

TWO_SIDES = 24.0
"""That of four values where x itself is the border of two expansions with one slope, as in x / (1 + |x|) at
zero: it takes the second derivative of either side away, and leaves h² · 2/3 of the third."""

FARTHEST = LEVELS[0].step
"""Step of the difference far away, in units of each entry's size: the certificate's first."""

WORTHWHILE = 8.0
"""So many times longer at least that has to be, to be worth four evaluations more."""

LESS = 0.5
"""Share of the residual of two values that may be left where more than three are needed."""


class Asked(Forward, Protocol):
    """A map and its backward at one point."""

    @property
    def primals(self) -> Sequence[Tensor]:
        """The differentiable inputs, detached."""

    @property
    def here(self) -> Sequence[Tensor | None]:
        """The m outputs at these inputs; None for zeros."""

    def back_each(self, cotangents: Sequence[Sequence[Tensor | None]]) -> Returned[list[Gradients]] | Raised:
        """The gradients for several sets of grad_outputs."""


class Trial(NamedTuple):
    """One direction, and a difference of values along it."""

    asked: Asked
    moves: Moves
    allowed: float
    """The residual allowed for one row of weight one."""
    weighed: Weighed
    """The difference of two values, by whose sizes rows are weighed."""
    here: Tensor
    """f(x), M entries."""
    ahead: Tensor
    """One of the two values, M entries, in memory that may be f's own."""
    change: Tensor
    """The difference, M entries."""
    factor: float
    """It is this times the derivative along T."""

    def expected(self, probe: Probe, line: Tensor) -> float:
        """The sum of J T, weighed by a probe."""
        change = self.change if probe.only is None else self.change[probe.rows]
        return torch.dot(line, change).item() / self.factor

    def shares(self, probe: Probe, expected: float, gradients: Gradients) -> list[float] | None:
        """What each input has of G(u)·T, for rows of weight one; None where they do not sum to u·J T."""
        moves = self.moves
        found = [
            0.0
            if g is None or step is None
            else torch.dot(vector_of(g, block), step if step.dim() == 1 else step.reshape(-1)).item()
            for g, step, block in zip(gradients, moves.steps, moves.inputs.blocks, strict=True)
        ]
        unit = TWO_VALUES / probe.scale
        if not abs(expected - sum(found)) * unit <= self.allowed:  # also where it is NaN
            return None
        return [unit * share for share in found]

    def sums(self, probes: Sequence[Probe], gradients: Sequence[Gradients]) -> list[float] | None:
        """The first probe's shares where every probe's sum; None where one's do not.

        What is expected is worked out anew: user code may have written into a grad_output.
        """
        first: list[float] | None = None
        for probe, given in zip(probes, gradients, strict=True):
            shares = self.shares(probe, self.expected(probe, probe.weighed(self.weighed)), given)
            if shares is None:
                return None
            first = first or shares
        return first

    def by_more_values(
        self, probes: Sequence[Probe], gradients: Sequence[Gradients]
    ) -> tuple[Trial, list[float]] | None:
        """The first finer difference by which all probes sum, and the first one's shares; None for none.

        Of the fourth value on, one that leaves much less than two values do: a gradient that is off leaves
        the same by all, and shall not slip under what is allowed by a little less rounding.
        """
        allowed: float | None = None
        for finer in self._finer():
            if finer.factor != THREE_VALUES:
                allowed = allowed or min(self.allowed, LESS * self._residual(probes, gradients))
                finer = finer._replace(allowed=allowed)  # noqa: PLW2901 - the same, asked more of
            shares = finer.sums(probes, gradients)
            if shares is not None:
                return finer._replace(allowed=self.allowed), shares
        return None

    def _residual(self, probes: Sequence[Probe], gradients: Sequence[Gradients]) -> float:
        """The largest residual that a probe leaves, for a row of weight one."""
        all_allowed = self._replace(allowed=math.inf)
        largest = 0.0
        for probe, given in zip(probes, gradients, strict=True):
            expected = self.expected(probe, probe.weighed(self.weighed))
            shares = all_allowed.shares(probe, expected, given)
            if shares is not None:
                largest = max(largest, abs(expected * TWO_VALUES / probe.scale - sum(shares)))
        return largest

    def _finer(self) -> Iterator[Trial]:
        """The same by three values, by four, and far away; fewer where forward raises or is not finite there.

        Or writes over one of the others.
        """
        asked, moves, here, near = self.asked, self.moves, self.here, self.weighed.change
        ahead = value_at(asked, moves.point(THIRD))
        if ahead is None or ahead.data_ptr() == self.ahead.data_ptr():
            return
        # 60 J T in differences alone, which are nearly exact: 24 (F₁ - F₋₁) + 16 (F₁ - F₀) - (F₄ - F₀)
        change = (self.ahead - here).mul_(16).add_(near, alpha=24).sub_(ahead - here)
        yield self._replace(change=change, factor=THREE_VALUES)
        behind = value_at(asked, moves.point(-THIRD))
        if behind is None or behind.data_ptr() == ahead.data_ptr():
            return
        outer = torch.sub(ahead, behind, out=change)
        del ahead, behind
        yield self._replace(change=(near * 64).sub_(outer), factor=FOUR_VALUES)
        yield self._replace(change=(near * 16).sub_(outer), factor=TWO_SIDES)
        yield self._replace(change=outer, factor=TWO_VALUES * THIRD)
        far = FARTHEST / moves.length
        if far < WORTHWHILE:
            return
        inner = difference(asked, moves.point, far)
        beyond = None if inner is None else difference(asked, moves.point, 2 * far)
        if inner is not None and beyond is not None:
            yield self._replace(change=inner[0].mul_(8).sub_(beyond[0]), factor=FOUR_POINTS * far)

    def pull_back(self, probes: Sequence[Probe], lines: Sequence[Tensor]) -> list[Gradients] | None:
        """What backward gives for weighed probes; None where it raises."""
        outputs = self.asked.outputs
        shaped = [probe.shaped(line, outputs) for probe, line in zip(probes, lines, strict=True)]
        result = self.asked.back_each(shaped)
        return None if isinstance(result, Raised) else result.value
