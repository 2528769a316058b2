"""What a rule is: one code, how severe it is, and the page that `explain` prints."""

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
    PRECISION = "precision"
    """What becomes of a verified gradient in native dtypes."""
    LINT = "lint"
    """Read off the source by `gradverify lint`; no outcome of `check` depends on it."""
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
    """What is wrong, for the table: short enough for 80 columns beside the longest name."""
    checks: str
    """What it checks."""
    matters: str
    """Why it matters."""
    example: str
    """A minimal wrong example, Python source in which `torch` is already imported."""
    remedy: str
    """What to do about it."""
