"""What the source tells of a parameter, and of a target as a whole."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field

from gradverify.source import integer


@dataclass
class Facts:
    """What is known of one parameter."""

    kinds: set[str] = field(default_factory=set)
    """`tensor index bool int dim float flag callable none sequence offsets`, each seen."""
    rank: int | None = None
    least_rank: int = 0
    names: tuple[str, ...] = ()
    """Names that the author gives to its dimensions."""
    strings: list[str] = field(default_factory=list)
    """What it is compared with, or looked up in."""
    numbers: list[float] = field(default_factory=list)
    """Numbers on either side of those that it is compared with."""
    gradient: bool | None = None
    """Whether backward returns anything but None for it; None where that cannot be read."""
    intended: bool = False
    """Whether backward asks if it needs a gradient."""

    def has_rank(self, rank: int, names: tuple[str, ...] = ()) -> None:
        """Take in a number of dimensions, where none is known."""
        self.kinds.add("tensor")
        if self.rank is None:
            self.rank, self.names = rank, names

    def has_dimensions(self, count: int) -> None:
        """Take in that it has at least so many dimensions."""
        self.kinds.add("tensor")
        self.least_rank = max(self.least_rank, count)


@dataclass(frozen=True)
class Evidence:
    """What forward, backward and their helpers tell of a target; facts by parameter, in call order."""

    facts: Mapping[str, Facts]
    parts: frozenset[int] = frozenset()
    """Numbers of equal parts into which tensors are cut: 4 of `i, f, g, o = gates.chunk(4, 1)`."""
    complexes: frozenset[str] = frozenset()
    """Names whose conjugate, or the like, forward or backward takes."""
    factorization: str = ""
    """A call of a routine that takes a matrix on trust: symmetric, triangular."""
    clamps: bool = False
    """Backward holds something within bounds, and forward does not."""
    likely: Mapping[str, int] = field(default_factory=dict)
    """Dimensions of parameters as the author writes of them, where nothing enforces them."""


@dataclass
class Context:
    """What forward leaves on ctx, for the methods that are read after it."""

    kept: dict[str, str] = field(default_factory=dict)
    """Parameters by the attribute that keeps them."""
    saved: list[str] = field(default_factory=list)
    """What `save_for_backward` got: parameters by position, an empty name for what is computed."""


def numbers_beside(operator: ast.cmpop, other: ast.expr) -> list[float]:
    """Numbers at which a comparison with another one comes out one way and the other."""
    number = integer(other)
    match operator, other:
        case ast.Eq() | ast.NotEq(), ast.Constant(value=float() as real):
            return [real]
        case ast.Eq() | ast.NotEq(), _ if number is not None:
            return [number]
        case ast.Gt() | ast.LtE(), _ if number is not None:
            return [number + 1, number]
        case ast.Lt() | ast.GtE(), _ if number is not None:
            return [number, number - 1]
        case _:
            return []
