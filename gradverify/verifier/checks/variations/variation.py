"""What a variation is: one idea of what must leave the verified gradient unchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gradverify.model import Finding, Swept
from gradverify.verifier.checks.variations.verified import Verified


@dataclass(frozen=True)
class Varied:
    """What one variation found, and what it really swept."""

    findings: tuple[Finding, ...] = ()
    swept: Swept = field(default_factory=Swept)


@dataclass(frozen=True)
class Variation:
    """One idea."""

    run: Callable[[Verified], Varied]
    unless: frozenset[str] = frozenset()
    """Codes that explain what it would find: it is left out where one of them was found."""
