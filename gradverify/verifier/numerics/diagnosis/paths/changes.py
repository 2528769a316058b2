"""What a local derivative of forward may be replaced by."""

from __future__ import annotations

from dataclasses import dataclass

from gradverify.verifier.numerics.diagnosis.paths.sites import Site


@dataclass(frozen=True)
class Edge:
    """One argument of one operation in forward's source."""

    site: Site
    place: int
    """Number of the argument among all of the call, lists opened."""


@dataclass(frozen=True)
class OnePass:
    """Of the passes of a loop that use a value, one alone counts, or one does not."""

    edge: Edge
    which: str
    """`first`, `last`, `all but the first` or `all but the last`."""


@dataclass(frozen=True)
class Change:
    """One argument's derivative, taken otherwise."""

    edge: Edge
    kind: str
    """`formula`, `output`, `operand`, `transposed`, `conjugate` or `dim`."""
    name: str = ""
    """The formula, the value in an operand's place, the other dimension."""
    of_result: bool = False
    """Whether a formula is one of the operation's result, not of its argument."""
    other: int = -1
    """Number of the argument that is replaced, for an operand."""
