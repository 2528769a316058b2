"""The six-point central difference, with a measured error for every row.

For f sampled at x + k·t, k = -3…3, with d_k = f(x + kt) - f(x - kt) and s_k = f(x + kt) + f(x - kt):

    D4 = (8 d1 - d2) / 12t             fourth order
    D6 = (45 d1 - 9 d2 + d3) / 60t     sixth order, the value that is used
    n  = |s3 - 6 s2 + 15 s1 - 20 f| / sqrt(924)

n is the sixth difference, scaled so that independent rounding errors of size σ in the seven samples give
n ≈ σ: a sample of the noise in f itself. (Fornberg, *Generation of finite difference formulas*, 1988, for
the weights; Hamming, *Numerical Methods*, ch. 6, for high differences as a measure of noise.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

OFFSETS = (-3, -2, -1, 1, 2, 3)
"""Multiples of the step at which f is sampled, beside the centre."""

SIXTH_DIFFERENCE_NORM = 924.0**0.5
"""Root of the summed squares of the weights 1, 6, 15, 20, 15, 6, 1."""

ROUND_OFF_GAIN = 1.1
"""Noise in D6 in units of (noise in f) / t: sqrt(2(45² + 9² + 1²)) / 60 = 1.08, rounded up."""

EPSILON = torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class Samples:
    """What six samples around a point tell about each of the M rows of f. All tensors have M entries."""

    derivative: Tensor
    """D6."""
    truncation: Tensor
    """|D6 - D4|: the error of the fourth-order value, so a large over-estimate for D6. Infinite where f
    was not finite at one of the points."""
    noise: Tensor
    """The sixth difference as a sample of the noise in f."""
    flat: Tensor
    """True where all six values equal the centre's bit for bit."""
    left: Tensor
    """Slope from the left neighbour to the centre."""
    right: Tensor
    """Slope from the centre to the right neighbour."""
    step: float

    @property
    def half_jump(self) -> Tensor:
        """Half the difference of the one-sided slopes: O(step) where f is smooth, constant at a kink."""
        return (self.right - self.left).abs() / 2

    def error(self, noise_floor: Tensor) -> Tensor:
        """Error of D6 for a known noise in f (M entries): truncation plus amplified noise.

        A flat row shows only that f moves by less than its own rounding over the whole span, so its
        error is that rounding, not zero: saturated functions have small derivatives, not none.
        """
        noise = torch.maximum(2 * self.noise, noise_floor)
        return self.truncation + ROUND_OFF_GAIN * noise / self.step


def six_point(values: Mapping[int, Tensor | None], centre: Tensor, step: float) -> Samples:
    """Combine f(x + k·step) for the k of `OFFSETS`, each of M entries, into derivative and error.

    A value of None stands for a point at which f could not be evaluated.
    """
    f = {k: torch.full_like(centre, torch.nan) if v is None else v for k, v in values.items()}
    d1, d2, d3 = (f[k] - f[-k] for k in (1, 2, 3))
    s1, s2, s3 = (f[k] + f[-k] for k in (1, 2, 3))
    fourth = (8 * d1 - d2) / (12 * step)
    sixth = (45 * d1 - 9 * d2 + d3) / (60 * step)
    noise = (s3 - 6 * s2 + 15 * s1 - 20 * centre).abs() / SIXTH_DIFFERENCE_NORM
    finite = sixth.isfinite() & noise.isfinite()
    flat = torch.stack([f[k] == centre for k in OFFSETS]).all(dim=0)
    infinite = torch.full_like(centre, torch.inf)
    zero = torch.zeros_like(centre)
    return Samples(
        derivative=torch.where(finite, sixth, zero),
        truncation=torch.where(finite, (sixth - fourth).abs(), infinite),
        noise=torch.where(finite, noise, zero),
        flat=flat,
        left=(centre - f[-1]) / step,
        right=(f[1] - centre) / step,
        step=step,
    )
