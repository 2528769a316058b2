"""Values that no spec asks for: large and small ones, zeros, ties, duplicates, masks of one value.

A formula often has branches (a threshold, a series for small arguments, a guard for zero), and a wrong
backward may hide in one that moderate values never enter. Draw 0 of a regime is what the spec declares;
the draws after it are drawn here, and what cannot be judged there counts for nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from gradverify.model import Case, Effort, Point, TensorInput, tensors_of
from gradverify.verifier.inputs.values import (
    DOMAINS,
    KEEP_AWAY,
    MODERATE,
    draw_integers,
    draw_values,
    source_of,
)

LARGE = (1.0, 100.0)
"""Magnitudes of large values: the usual thresholds (1, 3, 6, 20) lie between, and exp of them is finite."""

SMALL = (1e-6, 1e-2)
"""Magnitudes of small values: the usual thresholds of series expansions lie between."""

NEAR_AN_END = (1e-4, 0.3)
"""How far values of the domain `unit` are from its ends."""

FEWEST_STRATA = 4
"""Large magnitudes are spread over at least so many strata, of which few entries take the largest."""

BOTH_SIGNS = 2 * FEWEST_STRATA
"""Entries from which on one draw has large values of both signs, whatever the threshold."""

TYPICAL_DRAWS = {Effort.QUICK: 2, Effort.NORMAL: 2, Effort.THOROUGH: 6}
"""Two, so that a branch on the data is entered from both sides; more for luck."""

ROUNDS = {Effort.QUICK: 0, Effort.NORMAL: 1, Effort.THOROUGH: 2}
"""How often every undeclared regime is drawn."""

_LARGE, _MIRRORED, _SMALL = range(3)
_ZEROS, _ZERO_ROWS = range(2)


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


def draw_undeclared(spec: TensorInput, seed: int, point: Point, draw: int) -> list[float]:
    """The entries of a real floating tensor in row-major order, at a draw that is not declared."""
    if point is Point.WIDE:
        return _wide(spec, seed, draw) if _is_free(spec) else draw_values(spec, seed, point, draw)
    values = draw_values(spec, seed, point, draw)
    source = source_of(seed, spec.name, f"{point} places", draw)
    if (draw - 1) % 2 == _ZEROS:
        _tie(source, values, spec)
        if _allows_zero(spec):
            for place in source.sample(range(len(values)), min(len(values), _zeros_among(values, spec))):
                values[place] = 0.0
    elif not spec.distinct and not spec.structure:
        _even_rows(source, values, spec)
    return values


def draw_duplicates(spec: TensorInput, seed: int, draw: int) -> list[int]:
    """Integers half of which are the same one, or all of them, where that is valid."""
    values = draw_integers(spec, seed, Point.SPECIAL, draw)
    if spec.distinct or not values:
        return values
    source = source_of(seed, spec.name, "duplicates", draw)
    share = (len(values) + 1) // 2 if (draw - 1) % 2 == _ZEROS else len(values)
    same = source.choice(values)
    for place in source.sample(range(len(values)), share):
        values[place] = same
    return values


def draw_one_truth(spec: TensorInput, draw: int) -> list[bool]:
    """A mask that lets everything through, or nothing."""
    return [(draw - 1) % 2 == _ZEROS] * math.prod(spec.shape)


def _declared_points(drawn: list[TensorInput]) -> Iterator[tuple[Point, int]]:
    floating = [t for t in drawn if _is_floating(t)]
    if any(t.range is not None and not t.structure for t in floating):
        yield Point.WIDE, 0
    if any(t.special or t.ties for t in floating):
        yield Point.SPECIAL, 0


def _undeclared_points(drawn: list[TensorInput], rounds: int) -> Iterator[tuple[Point, int]]:
    free = [t for t in drawn if _is_floating(t) and _is_free(t) and _count(t)]
    needs_mirror = any(_is_signed(t) and _count(t) < BOTH_SIGNS for t in free)
    special = [t for t in drawn if _count(t) and _has_special_values(t)]
    for round_ in range(rounds):
        if free:
            kinds = (_LARGE, _MIRRORED, _SMALL) if needs_mirror else (_LARGE, _SMALL)
            yield from ((Point.WIDE, 1 + 3 * round_ + kind) for kind in kinds)
        if special:
            yield from ((Point.SPECIAL, 1 + 2 * round_ + kind) for kind in (_ZEROS, _ZERO_ROWS))


def _count(spec: TensorInput) -> int:
    return math.prod(spec.shape)


def _is_floating(spec: TensorInput) -> bool:
    return spec.dtype in {"float64", "complex128"}


def _is_free(spec: TensorInput) -> bool:
    """Nothing but a named domain limits its values."""
    return spec.range is None and not spec.structure


def _is_signed(spec: TensorInput) -> bool:
    return DOMAINS[spec.domain] == DOMAINS["real"]


def _has_special_values(spec: TensorInput) -> bool:
    if spec.structure:
        return False
    several = _count(spec) > 1 and not spec.distinct
    return several or (_is_floating(spec) and _allows_zero(spec))


def _allows_zero(spec: TensorInput) -> bool:
    if spec.domain != "real" or spec.structure or any(abs(a) < KEEP_AWAY for a in spec.avoid):
        return False
    return spec.range is None or spec.range[0] < 0 < spec.range[1]


def _wide(spec: TensorInput, seed: int, draw: int) -> list[float]:
    """Values of magnitudes spread evenly over the decades, in random order and of alternating sign."""
    kind = (draw - 1) % 3
    source = source_of(seed, spec.name, Point.WIDE, draw)
    count = math.prod(spec.shape)
    span = NEAR_AN_END if spec.domain == "unit" else SMALL if kind == _SMALL else LARGE
    values = _spread(source, count, span, spec)
    if _is_signed(spec):
        values = [v if (count - k + (kind == _MIRRORED)) % 2 else -v for k, v in enumerate(values)]
    elif spec.domain == "negative":
        values = [-v for v in values]
    elif spec.domain == "unit" and kind != _SMALL:
        values = [1 - v for v in values]
    source.shuffle(values)
    moderate = draw_values(spec, seed, Point.WIDE, draw)
    return [m if _is_avoided(spec, v) else v for v, m in zip(values, moderate, strict=True)]


def _spread(source: random.Random, count: int, span: tuple[float, float], spec: TensorInput) -> list[float]:
    """One short decimal from each of the largest of several logarithmic strata, in ascending order."""
    strata = max(count, FEWEST_STRATA) if span is LARGE else count
    digits = 2 + max(0, math.ceil(math.log10(max(count, 1) / 50)))
    margin = 0.25 if spec.distinct else 0.0
    places = (
        (k + margin + (1 - 2 * margin) * source.random()) / strata for k in range(strata - count, strata)
    )
    return [float(f"{span[0] * (span[1] / span[0]) ** place:.{digits}e}") for place in places]


def _is_avoided(spec: TensorInput, value: float) -> bool:
    return any(abs(value - point) < KEEP_AWAY * MODERATE for point in spec.avoid)


def _zeros_among(values: list[float], spec: TensorInput) -> int:
    return 1 if spec.distinct else max(1, len(values) // 4)


def _tie(source: random.Random, values: list[float], spec: TensorInput) -> None:
    """Make about a third of the entries equal to a neighbour."""
    if spec.distinct or spec.structure or len(values) < 2:
        return
    for place in source.sample(range(1, len(values)), max(1, len(values) // 3)):
        values[place] = values[place - 1]


def _even_rows(source: random.Random, values: list[float], spec: TensorInput) -> None:
    """Make one row all zeros, if zero is allowed, and another one all alike."""
    width = spec.shape[-1] if spec.shape else 1
    rows = source.sample(range(len(values) // width), min(2, len(values) // width)) if width else []
    for row, value in zip(rows, [0.0] * _allows_zero(spec) + [math.nan], strict=False):
        start = row * width
        values[start : start + width] = [values[start] if math.isnan(value) else value] * width
