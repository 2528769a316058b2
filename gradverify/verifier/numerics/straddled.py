"""The same proof a few rows at a time: rows whose difference straddles a kink are left to another direction.

Of thousands of inputs that move at once some always cross a kink or a jump of forward (a cell of a grid, a
limit, a tie), however short the step, and a few rows keep all from closing. Which they are, forward alone
tells: its third and fourth differences are rounding where it is smooth. Those rows get no grad_output; the
rest is proven, and they are proven by themselves along other directions, with shorter steps; but for what
lies at the point itself, which is nobody's derivative. Every row is part of a proof that closed, so nothing
is excused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.verifier.numerics.central import (
    FOUR_POINTS,
    NOISY,
    Level,
    difference,
    value_at,
    weigh,
)
from gradverify.verifier.numerics.functionals import (
    ALONE,
    MAGNITUDES,
    Functionals,
    ProofPoint,
    pull_back,
)
from gradverify.verifier.numerics.probes import tangent_of

TURNS = (
    Level(2.0**-19, 2.0**-28),
    Level(2.0**-19, 2.0**-28),
    Level(2.0**-22, 2.0**-26),
    Level(2.0**-25, 2.0**-25),
)
"""Each along a direction of its own. A kink so near that the first steps straddle it along every direction
is cleared by a shorter one, where rounding is larger: for so few rows that in them an error of one entry
shows as well as it does among all at the first."""

SHORTEST = Level(2.0**-25, math.inf)
"""How near what is straddled may lie; nothing is proven there. A kink at x itself shows where it bends f by
2^-16 of its slope."""

ROUNDING = 2.0**-46
"""Third and fourth difference, relative to the largest value of the output, that are rounding of sums: 16
times 2^-53 of terms eight times as large. Of a row of PyTorch's `grid_sampler_3d` they are 2^-50."""

ROUGH = 2.0**-41
"""Third and fourth difference over the step, relative to what a row counts, beyond which a row straddles
something: their rounding, 16 · 2^-53 |f| of at least 2^-7 · 12 |f|, is 2^-46. Of the two million rows of a
sample of PyTorch's `grid_sampler_3d` one to eight that are smooth were above 2^-41."""


@dataclass(frozen=True)
class _Stencil:
    """Five values of forward along a direction, as differences."""

    tangent: Tensor
    """v, N entries."""
    step: Tensor
    """T, N entries."""
    change: Tensor
    """`FOUR_POINTS` times the derivative along T, M entries."""
    value: Tensor
    """f at x, M entries."""
    bent: Tensor
    """The larger of third and fourth difference, M entries."""
    unit: float
    """`change` is this times the derivative along v."""
    damping: float

    def rough(self, allowed: float) -> Tensor:
        """Rows (bool, M) that straddle something, or are not finite."""
        own = self.change.abs().add_(self.value.abs(), alpha=NOISY * self.unit)
        surely = ~(self.bent <= allowed * own)
        ordinary = self.change[~surely].abs()
        mean = ordinary.mean().item() if ordinary.numel() else 0.0
        return ~(self.bent <= allowed * (own + mean / self.damping))


def faint_after_turns(
    point: ProofPoint, tangent: Tensor, magnitudes: tuple[float, ...] = MAGNITUDES
) -> set[int] | None:
    """Inputs, by number, that could be off unseen where every row closes in its turn.

    None where one does not, and where no row straddles anything along `tangent`. 5 forwards for each
    turn, and 5 where it leaves rows; a backward for each grad_output where rows are left to prove.
    """
    left = torch.ones(point.problem.outputs.size, dtype=torch.bool)
    faint: set[int] = set()
    for turn, level in enumerate(TURNS):
        direction = tangent if turn == 0 else _another(point, tangent, turn)
        stencil = _stencil(point, direction, level)
        if stencil is None:
            return None
        rough = stencil.rough(ROUGH / level.step)
        if turn == 0 and not bool(rough.any()):
            return None
        rows = left & ~rough
        count = int(rows.count_nonzero())
        if level.allowed * math.sqrt(count) > TURNS[0].allowed * math.sqrt(rows.numel()):
            return None
        if count:
            closed = _closed(point, stencil, rows, level, magnitudes)
            if closed is None:
                return None
            faint |= closed
            left &= rough
            magnitudes = ALONE
        if not bool(left.any()):
            return faint
        if not _beside(point, direction, left):
            break
    return None


def _beside(point: ProofPoint, direction: Tensor, rows: Tensor) -> bool:
    """Whether what some rows (bool, M) straddle along a direction lies beside x: a shorter step misses it.

    What lies at x itself it meets, too, and no other direction that happens to miss it may excuse it.
    """
    stencil = _stencil(point, direction, SHORTEST)
    if stencil is None:
        return False
    parts = [part.abs() for part in point.problem.outputs.cut(stencil.value) if part.numel()]
    rounding = ROUNDING * torch.cat([part.max().expand(part.numel()) for part in parts])
    broken = stencil.rough(ROUGH / SHORTEST.step) & ~(stencil.bent <= rounding)
    return not bool((broken & rows).any())


def _another(point: ProofPoint, tangent: Tensor, turn: int) -> Tensor:
    """Another direction for what moves along `tangent`."""
    drawn = tangent_of(point.x, point.inputs, point.key + turn)
    return torch.where(tangent != 0, drawn, 0.0)


def _stencil(point: ProofPoint, tangent: Tensor, level: Level) -> _Stencil | None:
    """None where forward raises, or an input is not finite."""
    if not bool(point.x.isfinite().all()):
        return None
    step = torch.add(point.x, tangent, alpha=level.step).sub_(point.x)
    moved = point.inputs.moving(point.x, step)
    here = value_at(point.problem, moved(0))
    if here is None:
        return None
    here = here.clone()  # forward may return the same memory every time
    near = difference(point.problem, moved, 1)
    if near is None:
        return None
    near = (near[0], near[1] - here)
    far = difference(point.problem, moved, 2)
    if far is None:
        return None
    third = far[0] - 2 * near[0]
    fourth = (2 * (far[1] - here) - far[0]) - 4 * (2 * near[1] - near[0])
    bent = torch.maximum(third.abs(), fourth.abs())
    return _Stencil(tangent, step, near[0] * 8 - far[0], here, bent, FOUR_POINTS * level.step, point.damping)


def _closed(
    point: ProofPoint, stencil: _Stencil, rows: Tensor, level: Level, magnitudes: tuple[float, ...]
) -> set[int] | None:
    """Inputs that are faint in the rows (bool, M) that were asked, if backward agrees there; else None."""
    nothing = torch.zeros((), dtype=torch.float64)
    change, value = (torch.where(rows, t, nothing) for t in (stencil.change, stencil.value))
    weighed = weigh(point.problem.outputs, change, value, stencil.unit, damping=point.damping)
    functionals = None if weighed is None else pull_back(point, weighed, magnitudes, rows)
    if weighed is None or functionals is None:
        return None
    if weighed.flat:
        return set() if _is_flat(point, stencil, rows, level, functionals) else None
    if not point.visible(weighed, level):
        return None
    shares = functionals.close(point.inputs, stencil.step, weighed, level.allowed)
    if shares is None:
        return None
    return {k for k in point.moving if abs(shares[k]) < level.allowed / point.rtol}


def _is_flat(
    point: ProofPoint, stencil: _Stencil, rows: Tensor, level: Level, functionals: Functionals
) -> bool:
    """Whether these rows do not move as far as one side goes, and give zeros to all that moves."""
    moves = [k for k, part in enumerate(point.inputs.cut(stencil.tangent)) if part.count_nonzero().item()]
    if not all(functionals.vanish(number) for number in moves):
        return False
    flat = point.flat_beside(stencil.tangent, level.step)
    return flat is not None and bool(flat[rows].all())
