"""How many calls the errors of a target may cost: causes, changes of backward, smaller inputs."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from gradverify.model import Effort
from gradverify.verifier import guard

TIMES = 8
"""Times the calls that verifying took: whoever has waited for that waits for so much more at most. Of 53
wrong backwards in `benchmarks/cases/wrong`, 2 lost their cause and 4 of 34 their fix at 2, and 2 their fix at
4; none at 6, where 52 of 60 findings keep the smaller inputs that they had without any limit. At 8 five wrong
gradients of one mistake are still shown at the smallest inputs."""

TIMES_IF_THOROUGH = 10
"""The same with `--effort thorough`."""

LEAST = 600
"""Calls that they may take in any case: three Jacobians of small inputs take some 500."""


@dataclass
class Allowance:
    """Calls that may still be made, one allowance for all that follows a failure."""

    calls: int = LEAST
    """As many as there were."""
    until: int = sys.maxsize
    """Nothing is begun once so many calls were made in this process; by default, always."""
    is_short: bool = False
    """Something was not looked for because it would take more."""

    @staticmethod
    def after(verifying: int, effort: Effort) -> Allowance:
        """What errors may cost from now on, where verifying took so many calls."""
        times = TIMES_IF_THOROUGH if effort is Effort.THOROUGH else TIMES
        calls = max(LEAST, times * verifying)
        return Allowance(calls, guard.CALLS.made + calls)

    @property
    def left(self) -> int:
        """Calls that may still be made."""
        return max(0, self.until - guard.CALLS.made)

    def covers(self, calls: float) -> bool:
        """Whether so many may still be made; that they may not is noted."""
        is_covered = calls <= self.left
        self.is_short = self.is_short or not is_covered
        return is_covered
