"""What the source tells of a parameter, and of a target as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Facts:
    """What is known of one parameter."""

    kinds: set[str] = field(default_factory=set)
    """`tensor index bool int dim float flag callable module none sequence dtype offsets whole operands cut
    searched kept`, each seen; what is kept is an attribute of ctx."""
    arity: int = 1
    """Arguments that it is called with."""
    rank: int | None = None
    least_rank: int = 0
    names: tuple[str, ...] = ()
    """Names that the author gives to its dimensions."""
    sizes: dict[int, str] = field(default_factory=dict)
    """The names as they are written, also of single dimensions, counted from the front or from the back."""
    strings: list[str] = field(default_factory=list)
    """What it is compared with, or looked up in."""
    numbers: list[float] = field(default_factory=list)
    """Numbers on either side of those that it is compared with."""
    attributes: set[str] = field(default_factory=set)
    """What is read of it by name."""
    unpacked: int = 0
    """Names that it is unpacked to."""
    gradient: bool | None = None
    """Whether backward returns anything but None for it; None where that cannot be read."""
    intended: bool = False
    """Whether backward asks if it needs a gradient, or initialises one beside those that it computes."""

    def has_rank(self, rank: int, names: tuple[str, ...] = ()) -> None:
        """Take in a number of dimensions, where none is known."""
        self.kinds.add("tensor")
        if self.rank is None:
            self.rank, self.names = rank, tuple(n.lower() for n in names)
            self.sizes.update({k: n for k, n in enumerate(names) if n.strip("_")})

    def is_told(self, sizes: tuple[str, ...]) -> None:
        """Take in the sizes that a docstring tells, unless the source knows another number of them."""
        if self.least_rank <= len(sizes) and (
            self.rank is None or (self.rank == len(sizes) and not self.sizes)
        ):
            self.has_rank(len(sizes), sizes)
            self.sizes = {k: n for k, n in enumerate(sizes) if not n.isdecimal()}

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
    joins: bool = False
    """Something is concatenated: a size may be the sum of two."""
    complexes: frozenset[str] = frozenset()
    """Names whose conjugate, or the like, forward or backward takes."""
    factorization: str = ""
    """A call of a routine that takes a matrix on trust: symmetric, triangular."""
    clamps: bool = False
    """Backward holds something within bounds, and forward does not."""
    roots: bool = False
    """Forward takes a root or a logarithm of eigenvalues, or of something else beside them."""
    likely: Mapping[str, int] = field(default_factory=dict)
    """Dimensions of parameters as the author writes of them, where nothing enforces them."""
