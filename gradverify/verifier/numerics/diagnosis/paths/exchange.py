"""Forward with another number, or with other values, in one place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gradverify.verifier.numerics.diagnosis.paths.instrumented import Instrumented
from gradverify.verifier.numerics.diagnosis.paths.own_forward import OwnForward
from gradverify.verifier.numerics.diagnosis.paths.sites import Site


@dataclass(frozen=True)
class Exchange:
    """Forward with another number, or other values, in one place."""

    kind: str
    """`number`, `value`, `swapped` for the values of two calls, `transposed` for a factor of a derivative,
    `use` for one use of a value, `neighbour` for one that is given the value of another pass of a loop,
    `final` for one that every pass gives what the last one made."""
    site: Site
    place: int
    """Number of the argument, for a number."""
    text: str
    """What stands there instead; `{}` for what stood there."""
    mode: Callable[[OwnForward], Instrumented | None]
    """A run with the exchange; None where it changes nothing."""
    other: Site | None = None
