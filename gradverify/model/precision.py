"""How near a value in a native dtype comes to the truth in float64."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Closeness(StrEnum):
    """From the best certificate to the worst; only `WRONG` is a mistake."""

    CORRECT = "correctly rounded"
    """Every entry is the truth, rounded once, up to float32's noise inside."""
    WITHIN = "within rounding"
    """Rounding every operation to float32 explains all of it."""
    ROUNDED = "rounded"
    """Rounding intermediates to the dtype explains all of it, rounding the result alone does not."""
    COARSE = "coarsely right"
    """Half of the dtype's digits are right; the noise inside could not be measured."""
    UNKNOWN = "not judged"
    WRONG = "wrong"


@dataclass(frozen=True)
class Precision:
    """What became of one value, an output or a gradient, in one dtype."""

    dtype: str
    value: str
    """`output 0`, or the name of an input: its gradient. Empty for all of them."""
    closeness: Closeness
    worst: float = 0.0
    """In units of what the closeness allows: 1 is the limit."""
    hides: float | None = None
    """An error of all entries by this factor, relative, could have hidden."""
    reason: str = ""
    """Why it was not judged, or how it was."""

    def worse(self, other: Precision) -> Precision:
        """The worse of two about the same value."""
        order = list(Closeness)
        return max(self, other, key=lambda p: (order.index(p.closeness), p.worst))
