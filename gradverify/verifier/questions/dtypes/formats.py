"""What rounding to a format may do to a value, and what it may not (`precision.md` §3).

Test A: every entry is the truth, correctly rounded, up to float32's noise inside. Test B: rounding of
intermediates to the format explains the error, of each entry, each slice and the whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

SINGLE_UNIT = 2.0**-24
"""Unit roundoff of float32 (IEEE 754): what careful kernels compute with inside."""

ALLOWANCE = 64.0
"""Standard deviations of float32's noise inside that are allowed: at 16 right kernels failed."""

LIMIT = 1.05
"""The ratio up to which a value counts as correctly rounded: 1 is the definition; right ones reach 1.04."""

FLOOR = 0.25
"""Noise is at least this share of the unit times the row's and the tensor's root mean square: a structural
zero may come out as rounding of its neighbours."""

NEAR_ZERO = 128.0
"""Half-spacings of subnormal numbers below which a truth says nothing about a factor."""

FEWEST = 6
"""Entries that a slice must have to be judged as one."""

_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}


@dataclass(frozen=True)
class Format:
    """One floating dtype; a complex one is judged by its parts."""

    dtype: torch.dtype
    """Real."""
    unit: float
    """Unit roundoff u, relative: half the distance from 1 to the next larger number."""
    tiny: float
    """Half the spacing of subnormal numbers, absolute."""
    largest: float

    @property
    def is_short(self) -> bool:
        """Whether it has 16 bits or fewer: then float32 inside is far more exact than the result."""
        return self.unit > SINGLE_UNIT

    @property
    def smallest(self) -> float:
        """Below it numbers may be flushed to zero: 16 bits are computed in float32."""
        return self.tiny if self.is_short else torch.finfo(self.dtype).tiny


def format_of(dtype: torch.dtype) -> Format:
    """The format of a floating dtype, or of the parts of a complex one."""
    real = _REAL.get(dtype, dtype)
    info = torch.finfo(real)
    return Format(real, info.eps / 2, info.smallest_normal * info.eps / 2, info.max)


def half_ulp(size: Tensor, form: Format) -> Tensor:
    """How far a correctly rounded value may be from the exact one of that magnitude (float64, its shape).

    Half the distance between two neighbours of the binade, or of the subnormal numbers.
    """
    exponent = torch.frexp(size).exponent.to(torch.float64)  # size = m * 2^exponent, m in [1/2, 1)
    return torch.where(size > 0, torch.exp2(exponent - 1) * form.unit, 0.0).clamp_min(form.tiny)


def as_real(x: Tensor) -> Tensor:
    """The values in float64 on the CPU, the parts of complex ones along a last dimension of 2."""
    plain = x.detach().resolve_conj().resolve_neg()
    plain = plain.to_dense() if plain.layout is not torch.strided else plain
    real = torch.view_as_real(plain) if plain.is_complex() else plain
    return real.to(device="cpu", dtype=torch.float64)


def root_mean_square(x: Tensor) -> float:
    """Of all entries; 0 where there are none."""
    return x.square().mean().sqrt().item() if x.numel() else 0.0


def sigma_inside(truth: Tensor, unit: float, smallest: float, noise: Tensor | None) -> Tensor:
    """Standard deviation (absolute, the truth's shape) of a computation, before its last rounding.

    `noise` (draws × shape) is what was measured, in units of `unit`; it adds to what any computation has.
    """
    squares = truth**2
    of_rows = squares.mean(dim=-1, keepdim=True) if squares.dim() else squares
    variance = (FLOOR * unit) ** 2 * (of_rows + squares.mean()) + smallest**2
    return (variance if noise is None else variance + (unit * noise).square().mean(dim=0)).sqrt()


def of_correct_rounding(value: Tensor, truth: Tensor, form: Format, noise: Tensor | None = None) -> Tensor:
    """Test A: the error of each entry in units of what correct rounding to a short format allows.

    NaN only where something was NaN.
    """
    slack = ALLOWANCE * sigma_inside(truth, SINGLE_UNIT, torch.finfo(torch.float32).tiny, noise)
    return (value - truth).abs() / (half_ulp(truth.abs() + slack, form) + slack)


@dataclass(frozen=True)
class Limits:
    """In standard deviations of the noise; set where right kernels of many kinds stay below."""

    entry: float
    slice: float
    whole: float
    slope: float
    """Of the error on the truth: a constant factor far below the noise of one entry shows over many."""


SHORT = Limits(entry=40.0, slice=15.0, whole=4.0, slope=12.0)
"""For 16 bits: right kernels reached 37, 10, 0.94 and 7.8."""

SINGLE = Limits(entry=200.0, slice=80.0, whole=20.0, slope=torch.inf)
"""For float32, where mistakes are 10^4 roundings away, and a biased sum may tilt a right gradient."""


def beyond_rounding(
    value: Tensor, truth: Tensor, form: Format, noise: Tensor | None = None
) -> tuple[float, float | None]:
    """Test B: the error in units of what rounding intermediates explains, infinite where that is no number.

    With it the relative error of all entries by one factor that could hide; None where the truth is zero. The
    result's own rounding is uniform within u of its value: variance (u*T)^2/3.
    """
    limits = SHORT if form.is_short else SINGLE
    inside = sigma_inside(truth, form.unit, form.tiny, noise)
    sigma = (inside**2 + (form.unit * truth) ** 2 / 3).sqrt()
    z, size = (value - truth) / sigma, root_mean_square(truth)
    each, hides = [z.abs().max().item() / limits.entry], None
    if size > 0:
        slope, spread = _slope(z, truth, sigma, form, noise)
        each += [root_mean_square(z) / limits.whole, abs(slope) / spread / limits.slope]
        each += [one / limits.slice for one in _of_slices(z)]
        hides = min(limits.whole * root_mean_square(sigma) / size, limits.slope * spread)
    return (math.inf if any(map(math.isnan, each)) else max(each)), hides


def _of_slices(z: Tensor) -> Iterator[float]:
    """The root mean square of the worst slice of each dimension."""
    for dimension, count in enumerate(z.shape):
        others = [d for d in range(z.dim()) if d != dimension]
        if others and z.numel() // count >= FEWEST:
            yield z.square().mean(dim=others).sqrt().max().item()


def _slope(
    z: Tensor, truth: Tensor, sigma: Tensor, form: Format, noise: Tensor | None
) -> tuple[float, float]:
    """The regression of the error on the truth, weighted by the noise, and its standard deviation.

    Of a truth that is far enough from zero to show a factor.
    """
    weight = torch.where(truth.abs() > NEAR_ZERO * form.tiny, truth / sigma, 0.0)
    bottom = weight.square().sum().item()
    if not bottom > 0:
        return 0.0, 1.0
    spread = form.unit / int((weight != 0).sum()) ** 0.5
    if noise is not None:
        null = form.unit * (noise / sigma * weight).reshape(len(noise), -1).sum(dim=1) / bottom
        spread = max(spread, null.square().mean().sqrt().item())
    return (z * weight).sum().item() / bottom, spread
