"""Test A: every entry is the true value, correctly rounded, up to float32's noise inside."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gradverify.verifier.numerics.precision.formats import Format, half_ulp
from gradverify.verifier.numerics.precision.spread import Noise

ALLOWANCE = 64.0
"""Standard deviations of float32's noise inside that are allowed: at 16 right kernels were accused."""

LIMIT = 1.05
"""The ratio up to which a value counts as correctly rounded: 1 is the definition; right ones reach 1.04."""

FEW = 0.02
"""Share of entries up to which those beyond the limit are outliers, and not the rule."""

FAR = 20.0
"""The ratio from which outliers are worth a warning."""


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
