"""At which points a case is verified: what is declared, and values that were not requested.

The front counts them before anything runs, the verifier draws them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from gradverify.model.case import Case, TensorInput, tensors_of
from gradverify.model.words import Effort, Point

FEWEST_STRATA = 4
"""Large magnitudes are spread over at least so many strata, of which few entries take the largest."""

KEEP_AWAY = 0.05
"""Drawn values keep this share of the interval's width away from zero, declared kinks and the ends."""

SIGNED = frozenset({"real", "nonzero"})
"""Domains of both signs."""

BOTH_SIGNS = 2 * FEWEST_STRATA
"""Entries from which on one draw has large values of both signs, whatever the threshold."""

TYPICAL_DRAWS = {Effort.QUICK: 2, Effort.NORMAL: 2, Effort.THOROUGH: 6}
"""Two, so that a branch on the data is entered from both sides; more for luck."""

ROUNDS = {Effort.QUICK: 0, Effort.NORMAL: 1, Effort.THOROUGH: 2}
"""How often every undeclared regime is drawn."""

LARGE_VALUES, MIRRORED, SMALL_VALUES = range(3)
"""Kinds of undeclared wide draws; mirrored ones are large with every sign turned."""

ZEROS, ZERO_ROWS = range(2)
"""Kinds of undeclared special draws."""


def points_of(case: Case, effort: Effort = Effort.NORMAL) -> tuple[tuple[Point, int], ...]:
    """Which (point, draw) pairs a case is verified at: what is declared first.

    Hooks draw their own values, so that only typical ones are to be had from them.
    """
    typical = tuple((Point.TYPICAL, draw) for draw in range(TYPICAL_DRAWS[effort]))
    if case.hook or effort is Effort.QUICK:
        return typical
    drawn = [t for i in case.inputs for t in tensors_of(i) if t.value is None and not t.make]
    return (*typical, *_declared_points(drawn), *_undeclared_points(drawn, ROUNDS[effort]))


def is_declared(point: Point, draw: int) -> bool:
    """Whether the values of a draw are what the spec says is valid, or moderate ones."""
    return point in {Point.TYPICAL, Point.PLAIN} or draw == 0


def _declared_points(drawn: list[TensorInput]) -> Iterator[tuple[Point, int]]:
    floating = [t for t in drawn if is_floating(t)]
    if any(t.range is not None and not t.structure for t in floating):
        yield Point.WIDE, 0
    if any(t.ties for t in floating) or any(t.special for t in drawn):
        yield Point.SPECIAL, 0


def _undeclared_points(drawn: list[TensorInput], rounds: int) -> Iterator[tuple[Point, int]]:
    free = [t for t in drawn if is_floating(t) and is_free(t) and _count(t)]
    needs_mirror = any(is_signed(t) and _count(t) < BOTH_SIGNS for t in free)
    special = [t for t in drawn if _count(t) and _has_special_values(t)]
    for round_ in range(rounds):
        if free:
            kinds = (LARGE_VALUES, MIRRORED, SMALL_VALUES) if needs_mirror else (LARGE_VALUES, SMALL_VALUES)
            yield from ((Point.WIDE, 1 + 3 * round_ + kind) for kind in kinds)
        if special:
            yield from ((Point.SPECIAL, 1 + 2 * round_ + kind) for kind in (ZEROS, ZERO_ROWS))


def _count(spec: TensorInput) -> int:
    return math.prod(spec.shape)


def is_floating(spec: TensorInput) -> bool:
    """Whether its values can be anything between."""
    return spec.dtype in {"float64", "complex128"}


def is_free(spec: TensorInput) -> bool:
    """Nothing but a named domain limits its values."""
    return spec.range is None and not spec.structure


def is_signed(spec: TensorInput) -> bool:
    """Whether its domain holds numbers of both signs."""
    return spec.domain in SIGNED


def _has_special_values(spec: TensorInput) -> bool:
    if spec.structure:
        return False
    several = _count(spec) > 1 and not spec.distinct
    return several or (is_floating(spec) and allows_zero(spec))


def allows_zero(spec: TensorInput) -> bool:
    """Whether zeros may be planted in it."""
    if spec.domain != "real" or spec.structure or any(abs(a) < KEEP_AWAY for a in spec.avoid):
        return False
    return spec.range is None or spec.range[0] < 0 < spec.range[1]
