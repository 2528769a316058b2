"""The dot-product test along one line: uᵀ(J v) from forward against (Aᵀu)·v from backward.

By a ladder of attempts in order of cost: steps, stencils and what they allow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.flat import vector_of
from gradverify.verifier.numerics.lines import (
    DAMPING,
    FOUR_APART,
    FOUR_VALUES,
    OUTER_VALUES,
    TWO_VALUES,
    Asked,
    Differences,
    Line,
    Stencil,
    Weighed,
    weigh,
)
from gradverify.verifier.numerics.probes import Cotangent, cotangents_of
from gradverify.verifier.numerics.problem import Gradients

SHORT_STEPS = ((2.0**-32, 2.0**-17), (2.0**-36, 2.0**-15), (2.0**-39, 2.0**-14), (0.0, 2.0**-13))
"""What has to be seen of a residual, and the step for as much or more. At 2^-17 truncation by two values,
h²/6, and the rounding of ordinary values, 2^-53/h, are alike: 2^-36. With sums, and rows whose derivative is
small beside f, rounding is eight times that, and for 10^5 entries a hundred times. What is finer drowns in
it, and takes a longer step. No longer than these, since a step over a kink closes nothing. Measured on sums,
products and softmax of 10^3 to 10^5 entries, and on PyTorch's operator database."""

FINE = 2.0**-33
"""The residual that is allowed for one row of weight one."""

COARSE = 2.0**-28
"""The same at a short step, where forward bends."""

FAR = 2.0**-3
"""How far a row that does not move is followed, in units of each entry's size, and has to stay on one side:
one that rounds to 8 bits inside moves by then."""

NEAR = 2.0**-5
"""The same for who asks for tolerances: one that rounds to bfloat16 inside makes two steps or more there, and
`round` half a step at most for values up to 10."""

LESS = 0.5
"""Share of the first residual that may be left by other values at the same step: a gradient that is off
leaves the same by all, and shall not slip under what is allowed by a little less rounding."""

MAGNITUDES = (-(2.0**12), 2.0**-20)
"""Sizes of grad_output: a backward that clamps, thresholds or squares it can satisfy one of them only. No
larger, since a right backward may round relative to grad_output (`matrix_exp` scales it with its matrix)."""

ALONE = (1.0,)
"""The same where an input is probed alone: that backward is linear has been seen."""


@dataclass(frozen=True)
class Attempt:
    """One way to ask forward, and how far backward may be off then."""

    step: float
    """h, in units of each entry's size."""
    stencil: Stencil
    allowed: float
    """The residual allowed for one row of weight one."""
    smooth: bool | None = None
    """Only where forward is smooth at the first attempt, or only where it is not; None for both."""
    less: float = math.inf
    """Share of the residual of the first attempt that may be left."""


@dataclass(frozen=True)
class Ladder:
    """Attempts in order of cost, and what belongs to a proof by them."""

    attempts: tuple[Attempt, ...]
    far: float
    """How far a row that does not move is followed."""
    jumps: int = 0
    """How often a row may jump on the way there: fewer times than one that rounds inside to the format that
    `far` was chosen for."""
    repeats: bool = False
    """Backward has to give the same each time."""
    each: bool = False
    """Where the inputs do not close together, each is moved alone."""


@lru_cache(maxsize=64)
def long_ladder(visible: float = 0.0) -> Ladder:
    """For who asks for more than tolerances. Measured on PyTorch's operator database.

    `visible` is the residual that has to be seen, where tolerances are all that is asked.
    """
    allowed = max(FINE, min(COARSE, visible))
    attempts = (
        Attempt(2.0**-12, FOUR_VALUES, allowed),
        Attempt(2.0**-8, FOUR_VALUES, allowed, smooth=True),  # 16 times less rounding
        Attempt(2.0**-19, FOUR_VALUES, COARSE, smooth=False),  # straddles fewer kinks
    )
    return Ladder(attempts, far=FAR, each=True)


@lru_cache(maxsize=64)
def short_ladder(visible: float) -> Ladder:
    """Mostly two evaluations and two backwards, for who asks for no more than tolerances.

    `visible` is the residual that has to be seen. A drop-in asks this of thousands of small problems, where
    our own work would cost as much as the function.
    """
    allowed = max(FINE, min(COARSE, visible))
    step = next(step for least, step in SHORT_STEPS if visible >= least)
    stencils = (TWO_VALUES, FOUR_APART, OUTER_VALUES)
    attempts = tuple(Attempt(step, s, allowed, less=LESS if s.outer else math.inf) for s in stencils)
    return Ladder(attempts, far=NEAR, jumps=1, repeats=True)


@dataclass(frozen=True)
class Along:
    """What forward and backward have along a line."""

    line: Line
    weighed: Weighed
    beside: Tensor
    """f at x + T, M entries, in memory that may be f's own."""
    attempt: Attempt | None = None
    """The one that closed."""
    shares: Sequence[float] = ()
    """What each input has of the derivative then, for rows of weight one."""
    gradients: Sequence[Gradients] = ()


@dataclass(frozen=True)
class DotProductTest:
    """A map and its backward, and how they are asked."""

    asked: Asked
    ladder: Ladder
    rtol: float
    atol: float
    keys: tuple[int, ...] = (0, 0)
    """They choose the cotangents of each magnitude: the same ones show whether backward repeats itself."""
    damping: float = DAMPING

    def along(
        self, line: Line, magnitudes: tuple[float, ...], known: Gradients | None = None
    ) -> Along | None:
        """The first attempt that closes along a line; None where forward raises or is not finite there.

        `known` are the gradients for every grad_output, where that is known.
        """
        first, taken = self.ladder.attempts[0], Differences(self.asked, line)
        change, beside = taken.by(first.stencil), taken.beside
        if change is None or beside is None:
            return None
        unit = first.stencil.factor * line.length
        weighed = weigh(self.asked.outputs, change, beside, unit, self.damping)
        if weighed is None:
            return None
        found = Along(line, weighed, beside)
        if weighed.flat or not self._sees(found, first.allowed):
            return found
        probes = cotangents_of(self.asked.outputs, magnitudes, unit, self.keys)
        lines = [probe.weighed(weighed.size) for probe in probes]
        gradients = self.pull_back(probes, lines) if known is None else [known] * len(probes)
        if gradients is None:
            return found
        same = self.ladder.repeats and _same_again(probes, gradients)
        reported = slice(0, 1) if same else slice(None)
        closed = self._closed(found, taken, probes[reported], lines[reported], gradients[reported])
        if closed is None or not self.ladder.repeats or same or magnitudes is ALONE:
            return closed or found
        again = self.pull_back(probes[:1], lines[:1])
        return closed if again is not None and identical(gradients[0], again[0], 1.0) else found

    def _closed(
        self,
        found: Along,
        taken: Differences,
        probes: Sequence[Cotangent],
        lines: Sequence[Tensor],
        gradients: Sequence[Gradients],
    ) -> Along | None:
        """By which attempt forward along the line, weighed by the probes, is what backward gave for them."""
        first, weighed = self.ladder.attempts[0], found.weighed
        left, smooth = math.inf, None
        for attempt in self.ladder.attempts:
            if attempt.smooth is not None:
                smooth = taken.is_smooth(weighed, first.stencil.factor) if smooth is None else smooth
                if attempt.smooth != smooth:
                    continue
            if attempt.step != first.step:
                taken = Differences(self.asked, found.line.stretched(attempt.step))
            change = taken.by(attempt.stencil)
            if change is None or (attempt is not first and not change.any()):
                continue
            expected = [_expected(p, u, change) for p, u in zip(probes, lines, strict=True)]
            unit = weighed.unit / taken.line.length
            residual = 0.0
            shares: list[float] = []
            for probe, wanted, given in zip(probes, expected, gradients, strict=True):
                own = _shares(taken.line, given)
                off = abs(wanted / attempt.stencil.factor - sum(own)) * unit / probe.scale
                residual = max(residual, off) if math.isfinite(off) else math.inf
                shares = shares or [share * unit / probe.scale for share in own]
            if residual <= min(attempt.allowed, attempt.less * left) and (
                attempt.allowed == first.allowed or self._sees(found, attempt.allowed)
            ):
                return Along(found.line, weighed, found.beside, attempt, shares, gradients)
            left = min(left, residual) if attempt is first else left
        return None

    def _sees(self, found: Along, allowed: float) -> bool:
        """Whether errors of rtol are larger than what is allowed, in every row that is not below atol."""
        return found.weighed.sees(allowed, self.rtol, lambda: found.line.noticed(self.atol))

    def pull_back(self, probes: Sequence[Cotangent], lines: Sequence[Tensor]) -> list[Gradients] | None:
        """What backward gives for weighed probes; None where it raises."""
        outputs = self.asked.outputs
        shaped = [probe.shaped(line, outputs) for probe, line in zip(probes, lines, strict=True)]
        result = self.asked.back_each(shaped)
        return None if isinstance(result, Raised) else result.value


def _expected(probe: Cotangent, line: Tensor, change: Tensor) -> float:
    """U · change."""
    return torch.dot(line, change if probe.only is None else change[probe.rows]).item()


def _shares(line: Line, gradients: Gradients) -> list[float]:
    """What each input has of G(u)·T."""
    return [
        0.0
        if g is None or step is None
        else torch.dot(vector_of(g, block), step if step.dim() == 1 else step.reshape(-1)).item()
        for g, step, block in zip(gradients, line.steps, line.inputs.blocks, strict=True)
    ]


def _same_again(probes: Sequence[Cotangent], gradients: Sequence[Gradients]) -> bool:
    """Whether there is one output, and backward gives the same at another magnitude, to the last bit.

    Both are powers of two: no product rounds differently, and what closes for one closes for the other.
    """
    if len(gradients) != 2 or probes[1].only is not None:
        return False
    return identical(gradients[0], gradients[1], MAGNITUDES[1] / MAGNITUDES[0])


def identical(actual: Gradients, expected: Gradients, factor: float) -> bool:
    """Whether `expected` is `factor` times `actual`, to the last bit; None agrees with None."""
    for a, e in zip(actual, expected, strict=True):
        if a is None or e is None:
            if a is not e:
                return False
        elif not torch.equal(a * factor, e):
            return False
    return True
