"""What one call of a target costs, as a class, and how many calls its errors may cost.

Counts and no seconds: so a busy machine gives the same report.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from enum import StrEnum

from gradverify.model.words import Effort


class Price(StrEnum):
    """The processor time below which one forward with its backward stays at the base case."""

    LEAST = "10ms"
    HUNDREDTHS = "100ms"
    TENTHS = "1s"
    MORE = "more"

    @property
    def shown(self) -> str:
        """As reports have it."""
        return ">=1s" if self is Price.MORE else f"<{self.value}"


CLASSES = ((0.010, Price.LEAST), (0.100, Price.HUNDREDTHS), (1.0, Price.TENTHS))
"""Seconds of a processor below which a call is of a class."""

THOROUGH = 10
"""Times as many calls that a thorough run may spend."""


@dataclass(frozen=True)
class Allowance:
    """How many calls what follows a failure may take, of forward or of backward alike."""

    measured: int
    """To measure Jacobians for a cause; the three of small inputs take some 500."""
    tried: int
    """To try changes of backward's source, for one gradient."""
    shrunk: int
    """To tell a target's errors at smaller inputs."""
    confirmed: int
    """Places beside those that were measured at which a change of backward is confirmed, of some 20 calls."""


ALLOWED = {
    Price.LEAST: Allowance(6000, 4000, 6000, 100),
    Price.HUNDREDTHS: Allowance(300, 100, 150, 5),
    Price.TENTHS: Allowance(30, 10, 15, 1),
    Price.MORE: Allowance(0, 0, 0, 0),
}
"""Some 1.5 s in all for small inputs of ordinary Functions; nearly all need a tenth of the first row.
Where a call takes seconds, what verifying has measured must do."""


def price_of(seconds: float) -> Price:
    """The class of a call that takes so long."""
    return next((price for limit, price in CLASSES if seconds < limit), Price.MORE)


def allowance(price: Price, effort: Effort) -> Allowance:
    """What calls of this price may be spent on a target."""
    usual = ALLOWED[price]
    times = THOROUGH if effort is Effort.THOROUGH else 1
    return Allowance(*(times * count for count in astuple(usual)))
