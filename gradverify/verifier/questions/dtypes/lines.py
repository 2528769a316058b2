"""Rounding seen from outside: along a short line a smooth map is a polynomial of low degree.

Its third differences vanish, and those of its rounding do not (Moré and Wild, *Estimating computational
noise*, 2011). What a kink or a steep place leaves shrinks with the step; rounding stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

STEPS = (2.0**-20, 2.0**-23)
"""Distances between neighbouring points, in units of the inputs: 16 and 2 roundings of float32."""

POINTS = 6
"""On each line; three third differences for each value."""

SCALE = (3 * 2 * 1) ** 2 / (6 * 5 * 4 * 3 * 2 * 1)
"""(3!)² / 6!: times the mean square of third differences of independent errors, this is their variance."""

FINEST = 2.0**-33
"""Share of the largest value above which errors are none of float64: it leaves room for 20 lost bits."""

COARSEST = 2.0**-10
"""Share above which they are no rounding of float32 either: a map that jumps is another thing."""

SHARE = 0.25
"""Share of the changed values that must be off: rounding affects most of them, a kink only a few."""

SHRINKS = 6.0
"""Over a step 8 times smaller, a kink's differences shrink by 8 or more, curvature's by 512."""


def errors_along(line: Tensor) -> Tensor:
    """Errors of values along a line (points × values), without what is smooth: three draws of each value."""
    return line.diff(n=3, dim=0).mul(math.sqrt(SCALE))


def computes_in_fewer_digits(values: Callable[[Tensor], Tensor | None], x: Tensor) -> bool:
    """Whether `values`, of a flat float64 point, has errors as large as float32 makes them.

    It is called 6 or 12 times beside `x`, then twice at it; None where it refuses leaves it unknown, which is
    no. Rounding repeats itself: what differs as much between two calls at one point is no rounding.
    """
    generator = torch.Generator().manual_seed(20_265)
    sign = torch.randint(0, 2, x.shape, generator=generator) * 2 - 1
    way = (0.5 + torch.rand(x.shape, generator=generator, dtype=x.dtype) / 2) * sign
    way = way * torch.where(x != 0, x.abs(), x.abs().median() if x.numel() else 1.0)
    before = torch.inf
    for step in STEPS:
        points = [values(x + k * step * way) for k in range(POINTS)]
        known = [p for p in points if p is not None]
        noise = _noise(torch.stack(known)) if len(known) == POINTS else 0.0
        if not FINEST < noise < COARSEST or (before < torch.inf and noise < before / SHRINKS):
            return False
        before = noise
    one, other = values(x), values(x)
    if one is None or other is None:
        return False
    size = one.abs().nan_to_num(0.0, 0.0, 0.0).max()
    return bool(((one - other).abs().nan_to_num(0.0, 0.0, 0.0) <= before / SHRINKS * size).all())


def _noise(line: Tensor) -> float:
    """Errors of the values along a line (points × values), as a share of the largest; 0 where few err."""
    moving = line.isfinite().all(dim=0) & (line != line[0]).any(dim=0)
    line = line[:, moving]
    if not line.numel():
        return 0.0
    errors = errors_along(line).square().mean(dim=0).sqrt() / line.abs().max()
    return float(errors.sort().values[int((1 - SHARE) * (errors.numel() - 1))])
