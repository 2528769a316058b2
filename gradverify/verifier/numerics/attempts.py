"""The ways to ask forward that a proof tries, in order of cost: steps, stencils and what they allow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from gradverify.verifier.numerics.lines import FOUR_APART, FOUR_VALUES, OUTER_VALUES, TWO_VALUES, Stencil

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
    return Ladder(attempts, far=NEAR, repeats=True)
