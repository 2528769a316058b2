"""How much longer a search goes on that other work on the machine holds up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

BUSY = 4.0
"""So many times as long a search for a cause may take where it gets a part of a processor only."""

SHORTEST_WAIT = 0.1
"""Seconds to the next look at how long a process has worked: its system counts hundredths."""


@dataclass(frozen=True)
class Patience:
    """Of one search, which may take `last` at most, and ends before where it has worked long enough."""

    worked: Callable[[], float | None]
    """What its process has had of the processors so far, in seconds; None where that cannot be told."""
    enough: float
    """What that is once the search has had its time."""
    last: float
    """Until when it may take, in seconds of the clock."""

    def until(self, now: float, deadline: float) -> float:
        """When to look again, at a deadline that has come; the deadline itself where it is over."""
        worked = self.worked()
        if worked is None or worked >= self.enough:
            return deadline
        return min(now + max(self.enough - worked, SHORTEST_WAIT), self.last)


def patience_of(worked: Callable[[], float | None], now: float, deadline: float, last: float) -> Patience:
    """For a search that begins now and may take until `deadline`, or at the very most until `last`."""
    allowed = deadline - now
    return Patience(worked, (worked() or 0.0) + allowed, min(last, now + BUSY * allowed))
