"""A backward that is no linear function of grad_output: which of those that are chosen on purpose it is.

Found by what backward makes of multiples of one grad_output. A gradient that is cut off is linear at small
ones and stays as it is at large ones, or is zero at small ones and linear at large ones; a normalised one is
the same for all; a rectified one is linear once that of the negative is taken off. Anything else, a square or
an absolute value, is chosen by nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Gradient = Callable[[Sequence[Tensor]], Tensor | None]
"""From grad_outputs to the gradient of one input; None where backward raises or gives none."""

SMALL, LARGE = 2.0**-60, 2.0**30
"""Multiples of grad_output below and above every bound that somebody sets, and every epsilon in a
denominator. Powers of two add no rounding, and these are within the range of float32."""

NEAR = 1e-3
"""Relative: a smooth bound, or an epsilon beside an ordinary grad_output, makes no such difference there."""

CUT_OFF = "it cuts off or normalises grad_output"
"""The same for all large grad_outputs: where an epsilon or a bound begins makes no difference."""

LINEAR = 1e-6
"""Relative difference up to which a gradient is additive: far above what rounding makes of a sum."""


def chosen_of(gradient: Gradient, cotangents: Sequence[Tensor]) -> str:
    """What backward does with grad_output, as `it rectifies grad_output`; empty for nothing of the kind."""
    scales = (SMALL, 2 * SMALL, 1.0, -1.0, LARGE, 2 * LARGE)
    several = [gradient([scale * c for c in cotangents]) for scale in scales]
    known = [g for g in several if g is not None and bool(g.isfinite().all())]
    if len(known) < len(several):
        return ""
    small, twice_small, own, back, large, twice_large = known
    if all(_near(g, own) for g in (large, twice_large)):
        return CUT_OFF
    is_linear_below = _near(twice_small, 2 * small)
    is_linear_above = _near(twice_large, 2 * large)
    if (is_linear_below and _near(twice_large, large)) or (is_linear_above and not small.any()):
        return CUT_OFF
    if (
        is_linear_below
        and is_linear_above
        and not _near(-back, own)
        and _is_additive(gradient, cotangents, own - back)
    ):
        return "it rectifies grad_output"
    return ""


def _near(one: Tensor, other: Tensor) -> bool:
    """Whether two gradients are the same, and not zero."""
    return bool(other.any()) and bool((one - other).abs().max() <= NEAR * other.abs().max())


def _is_additive(gradient: Gradient, cotangents: Sequence[Tensor], odd: Tensor) -> bool:
    """Whether the gradient less that of the negative, `odd`, is a linear function, and not zero."""
    others = [c.flip(tuple(range(c.dim()))) + 0.5 for c in cotangents]
    pairs = (others, [a + b for a, b in zip(cotangents, others, strict=True)])
    found = []
    for us in pairs:
        ahead, behind = gradient(us), gradient([-u for u in us])
        if ahead is None or behind is None:
            return False
        found.append(ahead - behind)
    second, both = found
    largest = torch.stack([odd.abs().max(), second.abs().max(), both.abs().max()]).max()
    return bool(odd.any()) and bool((both - odd - second).abs().max() <= LINEAR * largest)
