"""Values for one tensor at one point: short decimals, distinct entries, the same on every device.

Drawn with Python's own generator, so that they depend on the seed alone: not on torch's version, the
device, or which other inputs exist.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Sequence

from gradverify.model import Point, TensorInput
from gradverify.model.case import (
    AT_ONE_END,
    BESIDE_THRESHOLDS,
    DECADES_FROM,
    KEEP_AWAY,
    MODERATE,
    SMALLEST,
    STRATA,
    STRATA_FROM,
    UNDECLARED_BESIDE,
    draws_of_decades,
    draws_of_strata,
    spans_of,
)

DOMAINS = {
    "real": (-math.inf, math.inf),
    "nonzero": (-math.inf, math.inf),
    "positive": (0.0, math.inf),
    "negative": (-math.inf, 0.0),
    "unit": (0.0, 1.0),
}
"""Open intervals of the named domains."""

SMALL = (SMALLEST, 1e-2)
"""Magnitudes of small values: the usual thresholds of series expansions lie between."""

TENTH = 10
"""Plain values are multiples of one tenth."""


def draw_values(spec: TensorInput, seed: int, point: Point, draw: int) -> list[float]:
    """The entries of a real floating tensor in row-major order."""
    count = math.prod(spec.shape)
    source = source_of(seed, spec.name, point, draw)
    beside = point is Point.WIDE and draw in {BESIDE_THRESHOLDS, UNDECLARED_BESIDE}
    interval = interval_of(spec, Point.TYPICAL if beside else point)
    values = _distinct(source, count, interval, kept_away_from(spec.avoid, interval))
    if beside:
        _plant(source, values, spec.beside)
        return values
    if point is Point.TYPICAL:
        values = _of_both_signs(values, interval)
    if point is Point.TYPICAL and draw % 2:
        values = _other_sign(values, draw_values(spec, seed, point, draw - 1), interval)
    if point is Point.WIDE and spec.range is not None and draw >= DECADES_FROM:
        _spread(spec, values, seed, draw)
        source.shuffle(values)
    elif point is Point.WIDE and spec.range is not None:
        low, high = DOMAINS[spec.domain]
        _plant(source, values, [end for end in spec.range if low < end < high and end not in spec.avoid])
    if point is Point.SPECIAL and spec.special:
        _plant(source, values, spec.special * max(1, count // (4 * len(spec.special))))
    return values


def draw_plain(spec: TensorInput, seed: int, point: Point, draw: int) -> list[float]:
    """Distinct tenths in random order: ±1 and ±0.5 first, and what is whole or a half before others.

    They keep to the domain and range of the tensor, and away from zero, from declared kinks and from the
    ends; typical values where there are not enough of them.
    """
    low, high = interval_of(spec, Point.TYPICAL)
    forbidden = (0.0, low, high, *kept_away_from(spec.avoid, (low, high)))
    tenths = [k / TENTH for k in range(math.ceil(low * TENTH), math.floor(high * TENTH) + 1)]
    allowed = [v for v in tenths if all(abs(v - end) > 1 / (2 * TENTH) for end in forbidden)]
    values = sorted(allowed, key=_oddness)[: math.prod(spec.shape)]
    if len(values) < math.prod(spec.shape):
        return draw_values(spec, seed, Point.TYPICAL, draw)
    source_of(seed, spec.name, point, draw).shuffle(values)
    return values


def _oddness(value: float) -> tuple[bool, float, bool]:
    """Halves before other tenths; then how far from 1 in either direction, by factors; positive first."""
    return 2 * value % 1 > 0, abs(math.log(abs(value))), value < 0


def draw_integers(spec: TensorInput, seed: int, point: Point, draw: int) -> list[int]:
    """The entries of an integer tensor: distinct ones at even draws, if there are enough, else some twice.

    Special ones are planted at their point.
    """
    return with_special(spec, _integers_in_range(spec, seed, point, draw), seed, point, draw)


def with_special(spec: TensorInput, values: list[int], seed: int, point: Point, draw: int) -> list[int]:
    """The same with special integers at the declared special point, where an ordinary one is left, too.

    They may be marks outside of the range, such as a label to ignore.
    """
    if values and spec.special and (point, draw) == (Point.SPECIAL, 0):
        planted = [int(v) for v in spec.special] * max(1, len(values) // (4 * len(spec.special)))
        source = source_of(seed, spec.name, "special", draw)
        _plant(source, values, planted[: max(1, len(values) - 1)])
    return values


def _integers_in_range(spec: TensorInput, seed: int, point: Point, draw: int) -> list[int]:
    count = math.prod(spec.shape)
    if not count:
        return []
    source = source_of(seed, spec.name, point, draw)
    places, at = integers_of(spec)
    if (draw % 2 == 0 or spec.distinct) and len(places) >= count:
        return [at(place) for place in source.sample(places, count)]
    values = [at(source.choice(places)) for _ in range(count)]
    low, high = at(0), at(places[-1])
    _plant(source, values, [v for v in (low, high) if count > 1])
    inner = [place for place, value in enumerate(values) if low < value < high]
    if len(set(values)) == count and inner:
        values[source.choice(inner)] = low
    return values


def integers_of(spec: TensorInput) -> tuple[range, Callable[[int], int]]:
    """Places, and the integer at each: those of a tensor's range without what to avoid, ascending."""
    low, high = (int(bound) for bound in spec.range or (0, 2))
    left_out = sorted({int(point) for point in spec.avoid if low <= point < high})

    def at(place: int) -> int:
        value = low + place
        for point in left_out:
            value += point <= value
        return value

    return range(min(high - low - len(left_out), sys.maxsize)), at


def draw_booleans(spec: TensorInput, seed: int, point: Point, draw: int) -> list[bool]:
    """The entries of a boolean tensor: both values occur where there is room."""
    count = math.prod(spec.shape)
    source = source_of(seed, spec.name, point, draw)
    values = [source.random() < 0.5 for _ in range(count)]
    if count > 1:
        _plant(source, values, (True, False))
    return values


def source_of(seed: int, name: str, point: str, draw: int) -> random.Random:
    """The generator behind one draw of one tensor."""
    return random.Random(f"{seed}/{name}/{point}/{draw}")


def interval_of(spec: TensorInput, point: Point) -> tuple[float, float]:
    """Between which numbers values are drawn."""
    low, high = DOMAINS[spec.domain]
    if spec.range is not None:
        low, high = max(low, spec.range[0]), min(high, spec.range[1])
    if point is Point.WIDE and math.isfinite(high - low):
        return low, high
    moderate = max(low, -MODERATE), min(high, MODERATE)
    if moderate[1] - moderate[0] > 0:
        return moderate
    if math.isfinite(low) and math.isfinite(high):
        return low, high
    return (low, low + MODERATE) if math.isfinite(low) else (high - MODERATE, high)


def _distinct(
    source: random.Random, count: int, interval: tuple[float, float], avoid: Sequence[float]
) -> list[float]:
    """Distinct short decimals from an interval, away from its ends, from zero and from declared kinks."""
    if interval[1] <= interval[0] or not count:
        return [interval[0]] * count
    grid, unit, margin = grid_of(count, interval)
    taken = source.sample(grid, min(len(grid), 2 * count + 8))
    kept = taken
    for point in (0.0, *avoid):
        kept = [k for k in kept if abs(k / unit - point) >= margin]
    spare = kept or taken
    return [spare[i % len(spare)] / unit for i in range(count)]


def grid_of(count: int, interval: tuple[float, float]) -> tuple[range, float, float]:
    """Whole numbers k for which k / unit are enough short decimals of an interval; that unit; their margin.

    That far the decimals are from its ends, and are to be from zero and from declared kinks.
    """
    low, high = interval
    width = high - low
    margin = KEEP_AWAY * width / 2
    decimals = max(0, 2 - math.floor(math.log10(width)))
    if width * 10**decimals > sys.maxsize:
        decimals = 6 - math.floor(math.log10(width))  # of so many whole numbers none could be drawn
    while True:
        unit = 10**decimals
        grid = range(math.ceil((low + margin) * unit), math.floor((high - margin) * unit) + 1)
        if len(grid) >= 3 * count + 8 or decimals > 15:
            return grid, unit, margin
        decimals += 1


def kept_away_from(avoid: Sequence[float], interval: tuple[float, float]) -> tuple[float, ...]:
    """Declared kinks, and their mirror images where a draw may turn its sign."""
    return (*avoid, *(-a for a in avoid)) if is_symmetric(interval) else tuple(avoid)


def is_symmetric(interval: tuple[float, float]) -> bool:
    """Whether an interval holds the mirror image of everything in it."""
    return math.isclose(interval[0], -interval[1])


def _of_both_signs(values: list[float], interval: tuple[float, float]) -> list[float]:
    """Turn the smallest of several values of one sign: where one draw alone is asked, branches hang on it."""
    if len(values) < 2 or not is_symmetric(interval) or min(values) < 0 < max(values):
        return values
    turned = min(values, key=abs)
    return [-v if v == turned else v for v in values]


def _other_sign(values: list[float], before: list[float], interval: tuple[float, float]) -> list[float]:
    """Turn a draw's sign so that its sum differs in sign from the draw before: branches hang on it."""
    if is_symmetric(interval) and sum(values) * sum(before) > 0:
        return [-v for v in values]
    return values


def _spread(spec: TensorInput, values: list[float], seed: int, draw: int) -> None:
    """Move values to where they meet each part of a declared range, or each magnitude, over all draws.

    In a range of ±100, evenly drawn values are nearly all past where exp, erf and tanh saturate, and none is
    small: a wrong tail or series there has no entry. Each entry has a stratum of its own, at one share of it.
    Of the draws at one end it has a part of the last stratum, or of the first.
    """
    low, high = interval_of(spec, Point.WIDE)
    is_even = draw >= STRATA_FROM
    first, draws = (STRATA_FROM, draws_of_strata(spec)) if is_even else (DECADES_FROM, draws_of_decades(spec))
    share = source_of(seed, spec.name, Point.WIDE, first).random()
    at_end = draw >= AT_ONE_END
    for place in range(len(values) if at_end or draw - first < draws else 0):
        along = (draw - first + draws * place + share) / (draws * len(values))
        if at_end:
            along = ((place + share) / len(values) + (STRATA - 1) * (draw == AT_ONE_END)) / STRATA
        moved = float(f"{low + along * (high - low) if is_even else _magnitude(spec, along):.4g}")
        near = any(abs(moved - p) < KEEP_AWAY * min(1.0, abs(p) or 1.0) for p in spec.avoid)
        if low < moved < high and moved not in values and not near:
            values[place] = moved


def _magnitude(spec: TensorInput, along: float) -> float:
    """The number so far along the magnitudes of a declared range, from 0 to 1."""
    spans = spans_of(spec)
    rest = along * sum(weight for *_, weight in spans)
    for start, stop, weight in spans:
        if rest <= weight:
            return start * math.pow(stop / start, rest / weight)
        rest -= weight
    return spans[-1][1]


def _plant(
    source: random.Random, values: list[float] | list[int] | list[bool], points: Sequence[float]
) -> None:
    """Put given values at random places."""
    places = source.sample(range(len(values)), min(len(points), len(values)))
    for place, value in zip(places, points, strict=False):
        values[place] = value  # type: ignore[call-overload]
