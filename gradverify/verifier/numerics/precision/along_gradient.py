"""Finite differences in float32, along the gradient itself: where there is no float64 at all.

Along the gradient the slope is as large as it can be, and rounding as small beside it: 25 to 45 times less
noise than in a random direction. What backward leaves out does not show there, so forward is followed as well
where the gradient is nearly zero. A slope refutes only where it is known, and where forward is smooth there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gradverify.verifier.numerics.tolerance import is_known

STEPS = (2.0**-5, 2.0**-7, 2.0**-9, 2.0**-11)
"""Shares of the inputs' typical size by which they move, each one halved once, until a slope is known. Below
the last one the rounding of ordinary outputs alone is a thousandth of the slope."""

MOST = 3.0
"""Entries of the direction are cut at so many root mean squares: one of them must not take the whole step."""

FAINT = 0.1
"""Share of the root mean square of an input's gradient below which an entry of it is nearly zero."""

LEAST_SIZE = 2.0**-10
"""Typical size of an input whose values are all smaller, zeros say: a step needs digits to be one."""

ROOM = 0.5
"""Share of the way to the end of what is valid that the longest step may take."""

TRUSTED = 1e-3
"""Relative difference below which a slope in float32 is no error."""

SAFETY = 10.0
"""Times its own measured error that a slope must be off as well."""

HALVES = 0.6
"""A smooth map's one-sided slopes differ by half as much after half the step, a little more with what higher
derivatives do; those at a kink stay apart."""


class Weighed(NamedTuple):
    """What the outputs weigh, and the rounding of that."""

    sum: Tensor
    """Σ u·y, float64."""
    rounding: Tensor
    """eps · Σ |u·y|, eps of each output's dtype: how far the sum may be off by the outputs' last rounding."""


@dataclass(frozen=True)
class AlongGradient:
    """The slope that backward claims along its own gradient, and the one that forward has."""

    claimed: float
    measured: float
    error: float
    """How far `measured` may be off: what half the step changes, and the rounding of the outputs over it."""
    smooth: bool
    """The one-sided slopes approach each other as the step does."""

    @property
    def allowed(self) -> float:
        """Absolute difference that is no error."""
        return max(TRUSTED * max(abs(self.claimed), abs(self.measured)), SAFETY * self.error)

    @property
    def is_known(self) -> bool:
        """Whether the slope has any digits to hold the claim against."""
        return bool(is_known(self.measured, self.claimed, SAFETY * self.error))

    @property
    def is_right(self) -> bool:
        """Whether the slope is known, and the claimed one."""
        return self.is_known and abs(self.claimed - self.measured) <= self.allowed

    @property
    def is_wrong(self) -> bool:
        """Whether the slope is known, forward smooth, and the claim another one."""
        return self.smooth and self.is_known and not self.is_right

    @property
    def hides(self) -> float:
        """Relative error that could hide."""
        return self.allowed / abs(self.measured) if self.measured else torch.inf


def along_gradient(
    value: Callable[[Sequence[Tensor]], Weighed | None],
    primals: Sequence[Tensor],
    gradients: Sequence[Tensor],
    rooms: Sequence[Tensor],
    *,
    faint: bool = False,
) -> AlongGradient | None:
    """Measure the slope of a scalar function of native tensors; None where it refuses or nothing moves.

    Along the gradient; `faint`: along the signs of the entries' places, where the gradient is nearly zero.

    `value` sums in float64 what the outputs weigh; `gradients` are what backward gave for it. `rooms` says of
    each entry how far it may move and stay valid (float64, shaped like the primals, infinite for any way).
    The best of the steps counts: the first whose error is no matter, else the one with the least.
    """
    way = _faintly if faint else _along
    directions = [
        _direction(x, way(g.double()), room) for x, g, room in zip(primals, gradients, rooms, strict=True)
    ]
    if not any(bool(d.any()) for d in directions):
        return None
    centre = value(primals)
    if centre is None:
        return None
    best: AlongGradient | None = None
    for step in STEPS:
        pair = [_slope(value, primals, gradients, directions, s) for s in (step, step / 2)]
        far, near = pair
        if far is None or near is None:
            continue
        found = _extrapolated(far, near, centre)
        if best is None or (found.is_known, found.smooth, -found.error) > (
            best.is_known,
            best.smooth,
            -best.error,
        ):
            best = found
        if found.smooth and SAFETY * found.error <= TRUSTED * abs(found.measured):
            break
    return best


class _Slope(NamedTuple):
    """What one step shows."""

    step: float
    claimed: float
    above: Weighed
    below: Weighed

    @property
    def central(self) -> float:
        return (self.above.sum - self.below.sum).item() / (2 * self.step)

    @property
    def rounding(self) -> float:
        """Of a slope at this step."""
        return max(self.above.rounding.item(), self.below.rounding.item()) / self.step

    def gap(self, centre: Weighed) -> float:
        """Between the slopes on both sides."""
        return abs((self.above.sum - 2 * centre.sum + self.below.sum).item()) / self.step


def _slope(
    value: Callable[[Sequence[Tensor]], Weighed | None],
    primals: Sequence[Tensor],
    gradients: Sequence[Tensor],
    directions: Sequence[Tensor],
    step: float,
) -> _Slope | None:
    up, down = (
        [(x.double() + s * d).to(x.dtype) for x, d in zip(primals, directions, strict=True)]
        for s in (step, -step)
    )
    # By the steps that were really taken.
    moves = [(a.double() - b.double(), g.double()) for a, b, g in zip(up, down, gradients, strict=True)]
    claimed = sum((move * g).sum().item() for move, g in moves) / (2 * step)
    above, below = value(up), value(down)
    return None if above is None or below is None else _Slope(step, claimed, above, below)


def _extrapolated(far: _Slope, near: _Slope, centre: Weighed) -> AlongGradient:
    """The slope after a step and half of it; central differences err as the square of the step."""
    change = near.central - far.central
    rounding = near.rounding + abs(near.claimed - far.claimed)
    noise = 2 * near.rounding + TRUSTED * abs(near.central)
    smooth = near.gap(centre) <= HALVES * far.gap(centre) + noise
    if not smooth:
        return AlongGradient(near.claimed, near.central, abs(change) + rounding, smooth)
    # A third of the change is what is left after the smaller step.
    return AlongGradient(near.claimed, near.central + change / 3, abs(change) / 3 + rounding, smooth)


def _along(gradient: Tensor) -> Tensor:
    """The gradient in units of its root mean square, cut; zero where it is none."""
    size = gradient.square().mean().sqrt()
    known = bool(size > 0) and bool(size.isfinite())
    return (gradient / size).clamp(-MOST, MOST) if known else torch.zeros_like(gradient)


def _faintly(gradient: Tensor) -> Tensor:
    """One of either sign, by turns, where the gradient is nearly zero, and zero elsewhere."""
    nearly_zero = gradient.abs() <= FAINT * gradient.square().mean().sqrt()
    signs = torch.ones(gradient.numel(), dtype=torch.float64, device=gradient.device)
    signs[2::3] = -1.0  # by threes: neighbours in rows and in columns differ
    return torch.where(nearly_zero, signs.reshape(gradient.shape), 0.0)


def _direction(x: Tensor, way: Tensor, room: Tensor) -> Tensor:
    typical = x.double().abs().mean().clamp_min(LEAST_SIZE)
    longest = ROOM * room / STEPS[0]
    return (way * typical).clamp(-longest, longest)
