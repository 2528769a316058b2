"""What is known of one parameter, gathered from every body of source that uses it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Facts:
    """What is known of one parameter."""

    kinds: set[str] = field(default_factory=set)
    """`tensor index bool int dim float callable module none sequence dtype`, each seen in some use."""
    arity: int = 1
    """Arguments that it is called with."""
    rank: int | None = None
    least_rank: int = 0
    names: tuple[str, ...] = ()
    """Names that the author gives to its dimensions."""
    strings: list[str] = field(default_factory=list)
    """What it is compared with."""
    numbers: list[float] = field(default_factory=list)
    """Numbers on either side of those that it is compared with."""
    compared: list[str] = field(default_factory=list)
    """Attributes that it is compared with, such as members of an enumeration."""
    annotation: str = ""
    axes: list[Any] = field(default_factory=list)
    """Names of jaxtyping dimensions."""
    attributes: set[str] = field(default_factory=set)
    """What is read of it by name."""
    unpacked: int = 0
    """Names that it is unpacked to."""
    gradient: bool | None = None
    """Whether backward returns anything but None for it; None where that cannot be read."""
    intended: bool = False
    """Whether backward asks if it needs a gradient, or initialises one beside those that it computes."""

    def add(self, more: Facts) -> None:
        """Take in what another body tells, where forward itself does not say otherwise."""
        self.kinds |= more.kinds
        if self.rank is None:
            self.rank, self.names = more.rank, self.names or more.names
        self.least_rank = max(self.least_rank, more.least_rank)
        self.arity = max(self.arity, more.arity)
        self.strings += [s for s in more.strings if s not in self.strings]
        self.numbers += [n for n in more.numbers if n not in self.numbers]
        self.compared += [c for c in more.compared if c not in self.compared]
        self.attributes |= more.attributes
        self.unpacked = self.unpacked or more.unpacked
