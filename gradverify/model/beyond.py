"""Cases at sizes past a constant of the source: a block, a chunk, a threshold."""

from __future__ import annotations

from dataclasses import dataclass

from gradverify.model.case import Case

POWER_OF_TWO = "a power of 2"
"""The name of the constant 2 where sizes are rounded up to one: an odd size is past it."""


@dataclass(frozen=True)
class SizeConstant:
    """An integer in the source that a size may be held against."""

    value: int
    name: str = ""
    """What the source calls it; empty for a bare number."""
    line: int = 0

    def __str__(self) -> str:
        """`BLOCK = 128`, `128 (line 12)`, or `a power of 2`."""
        if self.name == POWER_OF_TWO:
            return self.name
        return f"{self.name} = {self.value}" if self.name else f"{self.value} (line {self.line})"


@dataclass(frozen=True)
class Beyond:
    """A case past a constant, that nobody asked for."""

    case: Case
    constant: str
    """`BLOCK = 128`."""
    size: str
    """The name of the size that is past it."""
    declared: bool = False
    """The spec lists the values of this size: that another one is valid is not said."""
    is_told: bool = True
    """Whether the report says so where nothing becomes known past it: not of `range(3)`, mostly an axis."""
