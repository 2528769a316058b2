"""Test B: a value's error is one that rounding intermediates to the native dtype explains.

Each entry, each slice and the whole are held against the measured noise; and the error is regressed on the
truth, since a constant factor far below the noise of one entry shows over many.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.verifier.numerics.precision.formats import Format
from gradverify.verifier.numerics.precision.spread import Noise

FEWEST = 6
"""Entries that a slice must have to be judged as one."""

NEAR_ZERO = 128.0
"""Half-spacings of subnormal numbers below which a truth says nothing about a factor."""


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
    worst, where = _worst_slice(z)
    slope = _Slopes(value - truth, truth, noise, form)
    beta, sd = slope.whole()
    tilted, tilted_where = slope.worst_slice() if limits.slope < torch.inf else (0.0, (-1, -1))
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


def _worst_slice(z: Tensor) -> tuple[float, tuple[int, int]]:
    worst, where = 0.0, (-1, -1)
    for dimension in range(z.dim()):
        others = [d for d in range(z.dim()) if d != dimension]
        if not others or z.numel() // max(z.shape[dimension], 1) < FEWEST:
            continue
        rms = z.square().mean(dim=others).sqrt()
        if not rms.max().item() <= worst:
            worst, where = rms.max().item(), (dimension, int(rms.argmax()))
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
        every = list(range(self.truth.dim()))
        top, bottom, null = self._sums(every)
        count = max(int(self._told.sum()), 1)
        if not bottom.item() > 0:
            return 0.0, 1.0
        spread = (null / bottom).square().mean().sqrt().item() if null.numel() else 0.0
        return (top / bottom).item(), max(spread, self.form.unit / count**0.5)

    def worst_slice(self) -> tuple[float, tuple[int, int]]:
        """The largest slope of one slice in its standard deviations, half its own and half all slices'."""
        worst, where = 0.0, (-1, -1)
        for dimension in range(self.truth.dim()):
            others = [d for d in range(self.truth.dim()) if d != dimension]
            size = self.truth.shape[dimension]
            if not others or self.truth.numel() // max(size, 1) < FEWEST:
                continue
            top, bottom, null = self._sums(others)
            told = bottom > 0
            if not told.any():
                continue
            beta = torch.where(told, top / bottom, 0.0)
            own = torch.where(told, (null / bottom).square().mean(dim=0), 0.0) if len(null) else beta * 0
            count = self._told.sum(dim=others).clamp_min(1)
            floor = self.form.unit**2 / count
            sd = torch.maximum((own + own[told].mean()) / 2, floor).sqrt()
            ratio = beta.abs() / sd
            if not ratio.max().item() <= worst:
                worst, where = ratio.max().item(), (dimension, int(ratio.argmax()))
        return worst, where

    @property
    def _told(self) -> Tensor:
        """Entries whose truth is far enough from zero to tell a factor."""
        return self.truth.abs() > NEAR_ZERO * self.form.tiny

    def _sums(self, over: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        weight = torch.where(self._told, self.truth / self.noise.sigma**2, 0.0)
        if not over:
            return self.error * weight, self.truth * weight, self.noise.null * weight
        top, bottom = (self.error * weight).sum(dim=over), (self.truth * weight).sum(dim=over)
        return top, bottom, (self.noise.null * weight).sum(dim=[d + 1 for d in over])
