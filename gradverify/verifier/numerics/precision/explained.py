"""Whether rounding explains how far a value is from the truth.

Test A: every entry is the true value, correctly rounded, up to float32's noise inside. Test B: its error is
one that rounding intermediates to the native dtype explains. Each entry, each slice and the whole are held
against the measured noise, and the error is regressed on the truth, since a constant factor far below the
noise of one entry shows over many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.verifier.numerics.precision.formats import Format, half_ulp
from gradverify.verifier.numerics.precision.spread import Noise

ALLOWANCE = 64.0
"""Standard deviations of float32's noise inside that are allowed: at 16 right kernels failed."""

LIMIT = 1.05
"""The ratio up to which a value counts as correctly rounded: 1 is the definition; right ones reach 1.04."""

FEW = 0.02
"""Share of entries up to which those beyond the limit are outliers, and not the rule."""

FAR = 20.0
"""The ratio from which outliers are worth a warning."""

FEWEST = 6
"""Entries that a slice must have to be judged as one."""

NEAR_ZERO = 128.0
"""Half-spacings of subnormal numbers below which a truth says nothing about a factor."""


@dataclass(frozen=True)
class Rounding:
    """How far entries are from the truth, in units of what correct rounding allows."""

    ratios: Tensor
    """Shaped like the value; 1 is the most that rounding explains. NaN only where something was NaN."""

    @property
    def worst(self) -> float:
        """The largest ratio; NaN where there is one."""
        return self.ratios.max().item() if self.ratios.numel() else 0.0

    @property
    def correct(self) -> bool:
        """Whether every entry is correctly rounded; False where a ratio is NaN."""
        return bool((self.ratios <= LIMIT).all())

    @property
    def share(self) -> float:
        """Share of entries that are not correctly rounded."""
        return (~(self.ratios <= LIMIT)).double().mean().item() if self.ratios.numel() else 0.0

    @property
    def has_outliers(self) -> bool:
        """Whether most entries are correctly rounded and a few are far off."""
        return 0 < self.share <= FEW and self.worst > FAR


def correct_rounding(value: Tensor, truth: Tensor, inside: Noise, form: Format) -> Rounding:
    """Hold a value in a native dtype against the truth in float64; both of one shape, in float64."""
    slack = ALLOWANCE * inside.sigma
    return Rounding((value - truth).abs() / (half_ulp(truth.abs() + slack, form) + slack))


@dataclass(frozen=True)
class Limits:
    """In standard deviations of the noise; set where right kernels of many kinds stay below."""

    entry: float
    slice: float
    whole: float
    slope: float
    """Infinite where factors are not judged."""


SHORT = Limits(entry=40.0, slice=15.0, whole=4.0, slope=12.0)
"""For 16 bits: right kernels reached 37, 10, 0.94 and 7.8."""

SINGLE = Limits(entry=200.0, slice=80.0, whole=20.0, slope=torch.inf)
"""For float32, where mistakes are 10^4 roundings away, and a biased sum may tilt a right gradient."""


@dataclass(frozen=True)
class Explained:
    """How far a value is beyond each limit: 1 is the limit itself."""

    entry: float
    slice: float
    whole: float
    slope: float
    tilted_slice: float
    factor: float
    """The truth times 1 + this is nearest to the value."""
    factor_error: float
    """One standard deviation of that, from rounding alone."""
    where: tuple[int, int] = (-1, -1)
    """(dimension, index) of the slice that is worst, (-1, -1) without one."""

    @property
    def worst(self) -> float:
        """The largest of all; NaN where one is."""
        each = torch.tensor([self.entry, self.slice, self.whole, self.slope, self.tilted_slice])
        return torch.inf if bool(each.isnan().any()) else each.max().item()

    @property
    def ok(self) -> bool:
        """Whether rounding explains everything; a NaN is no explanation."""
        return self.worst <= 1


def explained(value: Tensor, truth: Tensor, noise: Noise, form: Format) -> Explained:
    """Hold a value against the truth; both of one shape, in float64."""
    limits = SHORT if form.is_short else SINGLE
    z = (value - truth) / noise.sigma
    entry = z.abs().max().item() if z.numel() else 0.0
    whole = z.square().mean().sqrt().item() if z.numel() else 0.0
    slopes = _Slopes(value - truth, truth, noise, form)
    beta, sd = slopes.whole()
    worst, where = _worst_slice(z.shape, lambda others: z.square().mean(dim=others).sqrt())
    tilted, tilted_where = 0.0, (-1, -1)
    if limits.slope < math.inf:
        tilted, tilted_where = _worst_slice(z.shape, slopes.of_slices)
    by_slice, by_tilt = worst / limits.slice, tilted / limits.slope
    return Explained(
        entry=entry / limits.entry,
        slice=by_slice,
        whole=whole / limits.whole,
        slope=abs(beta) / sd / limits.slope,
        tilted_slice=by_tilt,
        factor=beta,
        factor_error=sd,
        where=where if by_slice >= by_tilt else tilted_where,
    )


def _worst_slice(
    shape: Sequence[int], measure: Callable[[list[int]], Tensor]
) -> tuple[float, tuple[int, int]]:
    """The largest of what is measured of each slice, and (dimension, index) of that slice.

    `measure` gives it for all slices of a dimension, from the other dimensions.
    """
    worst, where = 0.0, (-1, -1)
    for dimension, size in enumerate(shape):
        others = [d for d in range(len(shape)) if d != dimension]
        if not others or math.prod(shape) // max(size, 1) < FEWEST:
            continue
        each = measure(others)
        if not each.max().item() <= worst:
            worst, where = each.max().item(), (dimension, int(each.argmax()))
    return worst, where


@dataclass(frozen=True)
class _Slopes:
    """Regression of errors on the truth, weighted by the noise: sum(E T / s^2) / sum(T^2 / s^2)."""

    error: Tensor
    truth: Tensor
    noise: Noise
    form: Format

    def whole(self) -> tuple[float, float]:
        """The slope over all entries and its standard deviation."""
        top, bottom, null = self._sums(list(range(self.truth.dim())))
        count = max(int(self._telling.sum()), 1)
        if not bottom.item() > 0:
            return 0.0, 1.0
        spread = (null / bottom).square().mean().sqrt().item() if null.numel() else 0.0
        return (top / bottom).item(), max(spread, self.form.unit / count**0.5)

    def of_slices(self, others: list[int]) -> Tensor:
        """The slope of each slice in its standard deviations, half its own and half all slices'."""
        top, bottom, null = self._sums(others)
        known = bottom > 0
        if not known.any():
            return torch.zeros_like(bottom)
        beta = torch.where(known, top / bottom, 0.0)
        own = torch.where(known, (null / bottom).square().mean(dim=0), 0.0) if len(null) else beta * 0
        count = self._telling.sum(dim=others).clamp_min(1)
        sd = torch.maximum((own + own[known].mean()) / 2, self.form.unit**2 / count).sqrt()
        return beta.abs() / sd

    @property
    def _telling(self) -> Tensor:
        """Entries whose truth is far enough from zero to show a factor."""
        return self.truth.abs() > NEAR_ZERO * self.form.tiny

    def _sums(self, over: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        weight = torch.where(self._telling, self.truth / self.noise.sigma**2, 0.0)
        if not over:
            return self.error * weight, self.truth * weight, self.noise.null * weight
        top, bottom = (self.error * weight).sum(dim=over), (self.truth * weight).sum(dim=over)
        return top, bottom, (self.noise.null * weight).sum(dim=[d + 1 for d in over])
