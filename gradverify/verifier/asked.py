"""Which codes are asked for."""

from __future__ import annotations

from collections.abc import Sequence

from gradverify.model import Settings
from gradverify.rules import RULES, Family, rule


def wanted_families(settings: Settings, ignored: Sequence[str]) -> frozenset[Family]:
    """Families with at least one code that is selected and not ignored."""
    return frozenset(r.family for r in RULES if is_wanted(r.code, settings, ignored))


def is_wanted(code: str, settings: Settings, ignored: Sequence[str]) -> bool:
    """Whether findings with this code are asked for.

    What speaks of the run itself (no inputs, a forward that raises, what could not be judged) always is,
    unless it is ignored by name: else `--select` could turn "not verified" into green.
    """
    prefixes = (*settings.ignore, *ignored)
    if any(code.startswith(p) for p in prefixes):
        return False
    always = rule(code).family is Family.RUN or code in {"GV002", "GV102", "GV109"}
    return always or not settings.select or any(code.startswith(p) for p in settings.select)
