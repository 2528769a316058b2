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
    BESIDE_THRESHOLDS,
    KEEP_AWAY,
    MODERATE,
    SMALL_DECLARED,
    STRATA,
    STRATA_FROM,
    UNDECLARED_BESIDE,
    draws_of_decades,
    holds_small_values,
)

DOMAINS = {
    "real": (-math.inf, math.inf),
    "nonzero": (-math.inf, math.inf),
    "positive": (0.0, math.inf),
    "negative": (-math.inf, 0.0),
    "unit": (0.0, 1.0),
}
"""Open intervals of the named domains."""

GRIDS = (2, 10)
"""Values are halves where those suffice, else tenths."""

_FINER = 2
"""The draw that takes tenths even where halves suffice: a branch on the data may need a value between."""


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
    if point is Point.WIDE and spec.range is not None and draw >= STRATA_FROM:
        return _of_strata(spec, seed, draw - STRATA_FROM)
    if point is Point.WIDE and spec.range is not None and draw >= SMALL_DECLARED:
        offset = source_of(seed, spec.name, point, SMALL_DECLARED).random()
        return _of_magnitudes(spec, values, source, draw, offset)
    if point is Point.WIDE and spec.range is not None:
        _spread_over_decades(values, interval, spec.avoid)
        low, high = DOMAINS[spec.domain]
        _plant(source, values, [end for end in spec.range if low < end < high])
    if point is Point.SPECIAL and spec.special:
        _plant(source, values, spec.special * max(1, count // (4 * len(spec.special))))
    return values


def draw_plain(spec: TensorInput, seed: int, point: Point, draw: int) -> list[float]:
    """Distinct halves or tenths, ±1 and ±0.5 first, in random order.

    They keep to the domain and range of the tensor, and away from zero, from declared kinks and from the
    ends; typical values where there are not enough of them.
    """
    count = math.prod(spec.shape)
    grids = GRIDS[1:] if draw == _FINER else GRIDS
    allowed = next((found for unit in grids if len(found := _allowed(spec, unit)) >= count), None)
    if allowed is None:
        return draw_values(spec, seed, Point.TYPICAL, draw)
    source = source_of(seed, spec.name, point, draw)
    if draw == _FINER:
        source.shuffle(allowed)
    values = allowed[:count]
    source.shuffle(values)
    return [-v for v in values] if draw % 2 and is_symmetric(interval_of(spec, Point.TYPICAL)) else values


def _allowed(spec: TensorInput, unit: int) -> list[float]:
    """The multiples of 1/unit that are valid, the plainest first."""
    low, high = interval_of(spec, Point.TYPICAL)
    ends = [end for end in (*DOMAINS[spec.domain], *(spec.range or ())) if math.isfinite(end)]
    forbidden = (0.0, *ends, *kept_away_from(spec.avoid, (low, high)))
    away = 1 / (2 * unit)
    steps = range(math.ceil(low * unit), math.floor(high * unit) + 1)
    values = [k / unit for k in steps]
    kept = [v for v in values if all(abs(v - point) > away for point in forbidden)]
    return sorted(kept, key=_oddness)


def _oddness(value: float) -> tuple[float, bool]:
    """How far from 1 in either direction, by factors; positive before negative."""
    return abs(math.log(abs(value))), value < 0


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


def _spread_over_decades(values: list[float], interval: tuple[float, float], avoid: Sequence[float]) -> None:
    """Give every second entry a magnitude between the typical ones and the ends, each decade alike.

    In a range of ±100, evenly drawn values are nearly all past where exp, erf and tanh saturate, and a wrong
    tail before that has no entry.
    """
    low, high = interval
    end = max(abs(low), abs(high))
    if end <= 2 * MODERATE:
        return
    margin = KEEP_AWAY * MODERATE
    for place in range(0, len(values), 2):
        share = abs(values[place]) / end
        moved = math.copysign(float(f"{MODERATE * (end / MODERATE) ** share:.2e}"), values[place])
        near = any(abs(moved - point) < margin for point in avoid)
        if low < moved < high and moved not in values and not near:
            values[place] = moved


SMALL = (1e-6, 1e-2)
"""Magnitudes of small values: the usual thresholds of series expansions lie between."""


def _of_magnitudes(
    spec: TensorInput, values: list[float], source: random.Random, draw: int, offset: float
) -> list[float]:
    """Values of a declared range, moderate ones in it as they are, whose magnitudes are spread evenly.

    Small ones, up to where typical ones begin, or those of every decade up to the ends: over all draws of
    decades, each entry has a stratum of its own, and is at one share of it, `offset`, so that none lies
    further from the next than a stratum. Evenly drawn values hold none of the former, and few entries miss
    whole decades.
    """
    low, high = interval_of(spec, Point.WIDE)
    number, draws = draw - SMALL_DECLARED - 1, draws_of_decades(spec)
    if (number < 0 and not holds_small_values(spec)) or number >= draws:
        return values
    count, taken = len(values), set(values)
    strata, first, least = (count, 0, 0.0) if number < 0 else (count * draws, number, MODERATE)
    for place in range(count):
        stratum = first + place * (strata // count)
        negative = -low > least and (high <= least or (place + number) % 2 > 0)
        end = -low if negative else high
        smallest = max(SMALL[0], -high if negative else low)
        start, stop = (smallest, min(end, MODERATE)) if number < 0 else (MODERATE, end)
        if stop <= start:
            continue
        share = (stratum + offset) / strata
        moved = math.copysign(float(f"{start * (stop / start) ** share:.2e}"), -1.0 if negative else 1.0)
        near = any(abs(moved - point) < KEEP_AWAY * min(1.0, abs(point) or 1.0) for point in spec.avoid)
        if low < moved < high and moved not in taken and not near:
            values[place] = moved
            taken.add(moved)
    source.shuffle(values)
    return values


def _of_strata(spec: TensorInput, seed: int, draw: int) -> list[float]:
    """Values that go through all parts of a declared range, over the entries and then over the draws."""
    low, high = interval_of(spec, Point.WIDE)
    count, width = math.prod(spec.shape), (high - low) / STRATA
    order = list(range(STRATA))
    source_of(seed, spec.name, Point.WIDE, STRATA_FROM).shuffle(order)
    source = source_of(seed, spec.name, Point.WIDE, STRATA_FROM + draw)
    digits = max(0, 3 - math.floor(math.log10(width))) if width > 0 else 0
    values = []
    for place in range(count):
        stratum = order[(draw * count + place) % STRATA]
        # Away from the ends of the part, and from declared kinks: the other half of it has none then.
        for share in (source.uniform(0.1, 0.9), 0.25, 0.75):
            value = round(low + (stratum + share) * width, digits)
            if all(abs(value - point) >= KEEP_AWAY * width for point in (0.0, *spec.avoid)):
                break
        values.append(min(max(value, low), high))
    source.shuffle(values)
    return values


def _plant(
    source: random.Random, values: list[float] | list[int] | list[bool], points: Sequence[float]
) -> None:
    """Put given values at random places."""
    places = source.sample(range(len(values)), min(len(points), len(values)))
    for place, value in zip(places, points, strict=False):
        values[place] = value  # type: ignore[call-overload]
