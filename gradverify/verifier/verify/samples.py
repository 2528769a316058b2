"""At which samples a target is asked: declared ones of every case, then what nobody declared.

Undeclared values are drawn at the first case of each combination of options alone: a magnitude, a zero or a
tie is met at one size as well as at another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from gradverify.model import Beyond, Case, Effort, Point, TargetPlan
from gradverify.model.case import is_declared, points_of, strata_points, whole_points


class Kind(StrEnum):
    """Where a case comes from."""

    LISTED = "listed"
    OPEN = "open"
    """At sizes that symbolic shapes leave open."""
    DEGENERATE = "degenerate"
    """With a size of 0 or 1 that is not listed."""
    BEYOND = "beyond"
    """Past a constant of the source."""


@dataclass(frozen=True)
class Planned:
    """One case with the draws at which it is asked."""

    case: Case
    kind: Kind
    draws: tuple[tuple[Point, int], ...]
    is_first: bool
    """Of its combination of options: what is asked once for each is asked here."""
    beyond: Beyond | None = None


def planned(plan: TargetPlan, effort: Effort) -> Iterator[Planned]:
    """Every case in the order in which it is asked: the listed ones first."""
    met: set[object] = set()
    for case in plan.cases:
        first = case.options not in met
        met.add(case.options)
        yield Planned(case, Kind.LISTED, draws_of(case, effort, is_first=first), first)
    once = ((Point.TYPICAL, 0),)
    yield from (Planned(case, Kind.OPEN, once, is_first=False) for case in plan.open_sized)
    yield from (Planned(case, Kind.DEGENERATE, once, is_first=False) for case in plan.degenerate)
    yield from (Planned(b.case, Kind.BEYOND, once, is_first=False, beyond=b) for b in plan.beyond)


def draws_of(case: Case, effort: Effort, *, is_first: bool) -> tuple[tuple[Point, int], ...]:
    """Declared draws of a case; where it is the first with its options, those that nobody declared, too."""
    draws = points_of(case, effort)
    declared = tuple(d for d in draws if is_declared(*d))
    if not is_first:
        return declared
    if effort is Effort.QUICK:
        return draws
    return tuple(dict.fromkeys((*declared, *strata_points(case), *draws, *whole_points(case))))
