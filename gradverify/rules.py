"""The table of codes: what each one means, how severe it is, and the page that `explain` prints.

Codes are never reused. A code has one default severity; a check may lower it for a single finding
where the numbers say that the gradient itself is right, and then says so in the message.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gradverify.model import Severity


class Family(StrEnum):
    """The family of checks a code belongs to: the keys of `checks` in the JSON report."""

    GRADCHECK = "gradcheck"
    GRADGRADCHECK = "gradgradcheck"
    REFERENCE = "reference"
    CONTRACT = "contract"
    RUN = "run"
    """Not a check: inputs that cannot be built, processes that die."""


@dataclass(frozen=True)
class Rule:
    """One code and its page."""

    code: str
    name: str
    severity: Severity
    family: Family
    summary: str
    """One line for the table: `a finding when ...`."""
    checks: str
    """What it checks."""
    matters: str
    """Why it matters."""
    example: str
    """A minimal wrong example, Python source."""
    remedy: str
    """What to do about it."""
