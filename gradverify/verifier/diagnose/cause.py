"""A cause: the name of a mistake, and the numbers and names of which a sentence about it is made."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Strength(StrEnum):
    """What a cause that held at every entry may claim."""

    STRONG = "strong"
    """Nothing else that is known gives these numbers."""
    WEAK = "weak"
    """The numbers are consistent with it; another mistake may give the same ones."""


@dataclass(frozen=True)
class InBackward:
    """One change of backward's source after which its gradient is right."""

    file: str
    """Name of the file, without its folder."""
    line: int
    before: str
    """What stands there; of two statements in the wrong order, the first one."""
    after: str
    """What should; empty where nothing should; of two statements in the wrong order, the second one."""
    is_order: bool = False
    is_of_loop: bool = False
    """Whether it is what a loop goes through."""
    helper: str = ""
    """The function that it stands in, where that is one that backward calls."""
    cause: str = ""
    """The name of the mistake that it takes back."""


@dataclass(frozen=True)
class Cause:
    """One hypothesis that held at every entry of every point. Fields that do not apply are empty."""

    name: str
    """One of the names of `Finding.cause`."""
    strength: Strength = Strength.STRONG
    factor: float | None = None
    """claimed / true, where it is one number."""
    law: str = ""
    """What the factor is, in the user's names: a size, a literal argument, a function of an input."""
    side: str = ""
    """`input` or `output`: whose dimension or entries are meant."""
    dim: int | None = None
    other_dim: int | None = None
    kind: str = ""
    """Which variant of the cause, in a word of its own module."""
    other: str = ""
    """Another input or output that takes part."""
    condition: str = ""
    """Where the gradient is wrong, for a branch: `x > c`."""
    low: float | None = None
    """The threshold of the condition lies above this value of the data."""
    high: float | None = None
    """The threshold of the condition lies below this value of the data."""
    right_entries: int = 0
    """Entries that are right, for a cause that is limited to some."""
    change: InBackward | None = None
    """The change of backward that takes the mistake back."""
