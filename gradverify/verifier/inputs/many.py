"""Values of a tensor of very many entries, as one vector: no Python object stands for an entry.

What `values.py` and `regimes.py` draw, by arithmetic on whole numbers that is the same on every device and in
every version of torch. A list of 10^6 numbers takes seconds to draw, and five times the memory of the tensor.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradverify.model import Point, TensorInput
from gradverify.model.points import KEEP_AWAY, MIRRORED, ZEROS, allows_zero, is_declared, is_free, is_signed
from gradverify.verifier.inputs.regimes import ROWS_OF_THEIR_OWN, strata_of, wide_span
from gradverify.verifier.inputs.values import (
    DOMAINS,
    MODERATE,
    grid_of,
    interval_of,
    is_symmetric,
    kept_away_from,
    source_of,
)

MANY = 100_000
"""From this many entries on they are drawn here: at fewer a list takes milliseconds."""

CHUNK = 2**16
"""Entries drawn at once: so many fit a processor's cache."""

ROUNDS = 3
"""Of a mixing: after one, neighbours still differ by the same number."""

GOLDEN = (math.sqrt(5) - 1) / 2
"""Multiples of it, less their whole parts, lie evenly in the unit interval (Weyl's equidistribution)."""


def draw_many(spec: TensorInput, seed: int, point: Point, draw: int) -> Tensor:
    """The entries of a real floating tensor in row-major order at any draw: a float64 vector."""
    if point is Point.WIDE and not is_declared(point, draw) and is_free(spec):
        return _wide(spec, seed, draw)
    values = _drawn(spec, seed, Point.TYPICAL if point is Point.PLAIN else point, draw)
    if point is not Point.SPECIAL:
        return values
    if is_declared(point, draw):
        return _tied(random.Random(f"{seed}/ties"), values) if spec.ties else values
    source = source_of(seed, spec.name, f"{point} places", draw)
    if (draw - 1) % 2 == ZEROS:
        if not (spec.distinct or spec.structure):
            _tied(source, values)
        if allows_zero(spec):
            values[_places(source, len(values), 1 if spec.distinct else len(values) // 4)] = 0.0
    elif not spec.distinct and not spec.structure:
        _even_rows(source, values, spec, _row_of_all(values, spec, seed, draw))
    return values


def _drawn(spec: TensorInput, seed: int, point: Point, draw: int) -> Tensor:
    """Moderate values, or those of the declared range, with the declared special ones at their point."""
    count, interval = math.prod(spec.shape), interval_of(spec, point)
    source = source_of(seed, spec.name, point, draw)
    values = _distinct(source, count, interval, (0.0, *kept_away_from(spec.avoid, interval)))
    if point is Point.TYPICAL and draw % 2 and is_symmetric(interval):
        before = _drawn(spec, seed, point, draw - 1).sum()  # branches hang on the sign of the sum
        values = values.neg_() if values.sum() * before > 0 else values
    if point is Point.WIDE and spec.range is not None:
        low, high = DOMAINS[spec.domain]
        _plant(source, values, [end for end in spec.range if low < end < high], 1)
    if point is Point.SPECIAL and spec.special:
        _plant(source, values, spec.special, max(1, count // (4 * len(spec.special))))
    return values


def _distinct(
    source: random.Random, count: int, interval: tuple[float, float], away_from: Sequence[float]
) -> Tensor:
    """Distinct short decimals, away from an interval's ends and from some points; some twice if need be."""
    low, high = interval
    if high <= low:
        return torch.full((count,), low, dtype=torch.float64)
    grid, unit, margin = grid_of(count, interval)
    values, filled = torch.empty(count, dtype=torch.float64), 0
    for numbers in _numbers(source, len(grid)):
        part = numbers.double().add_(grid.start).div_(unit)
        for point in away_from:
            part = part[(part - point).abs_() >= margin]
        part = part[: count - filled]
        values[filled : filled + len(part)] = part
        filled += len(part)
        if filled == count:
            return values
    if not filled:
        return _distinct(source, count, interval, ())
    return values[:filled].repeat(count // filled + 1)[:count].clone()


def _wide(spec: TensorInput, seed: int, draw: int) -> Tensor:
    """Values of magnitudes spread evenly over the decades, in random order and of alternating sign."""
    count, (kind, span) = math.prod(spec.shape), wide_span(spec, draw)
    source = source_of(seed, spec.name, Point.WIDE, draw)
    strata, digits, margin = strata_of(count, span, spec)
    offset, filled, values = source.random(), 0, torch.empty(count, dtype=torch.float64)
    for stratum in _numbers(source, count):
        within = stratum.double().mul_(GOLDEN).add_(offset).frac_().mul_(1 - 2 * margin).add_(margin)
        place = within.add_(stratum + (strata - count)).div_(strata)
        part = _short(place.mul_(math.log(span[1] / span[0])).exp_().mul_(span[0]), digits)
        if is_signed(spec):
            part = torch.where((count - stratum + (kind == MIRRORED)) % 2 == 0, -part, part)
        elif spec.domain == "negative":
            part = -part
        elif spec.domain == "unit" and kind <= MIRRORED:
            part = 1 - part
        values[filled : filled + len(part)] = part
        filled += len(part)
    for point in spec.avoid:
        near = (values - point).abs_() < KEEP_AWAY * MODERATE
        values = torch.where(near, _drawn(spec, seed, Point.WIDE, draw), values)
    return values


def _short(values: Tensor, digits: int) -> Tensor:
    """Positive values to so many decimals of their first digit."""
    unit = torch.pow(10.0, digits - values.log10().floor_())
    return (values * unit).round_().div_(unit)


def _numbers(source: random.Random, size: int) -> Iterator[Tensor]:
    """The whole numbers below `size` in random order, each once; int64, some at a time.

    Multiplied by odd numbers and with their upper halves added to the lower ones, the numbers of so many bits
    are exchanged among each other (the mixing of hash functions); those that are too large are passed over.
    """
    bits = max(2, (size - 1).bit_length())
    rounds = [(source.getrandbits(bits) | 1, source.getrandbits(bits)) for _ in range(ROUNDS)]
    for start in range(0, 2**bits, CHUNK):
        x = torch.arange(start, min(start + CHUNK, 2**bits))
        for factor, added in rounds:
            x.mul_(factor).add_(added).bitwise_and_(2**bits - 1)
            x.bitwise_xor_(x >> (bits + 1) // 2)
        yield x[x < size]


def _places(source: random.Random, size: int, count: int) -> Tensor:
    """So many different places below `size`, int64."""
    found: list[Tensor] = []
    for part in _numbers(source, size):
        found.append(part[: count - sum(map(len, found))])
        if sum(map(len, found)) == count:
            break
    return torch.cat(found)


def _plant(source: random.Random, values: Tensor, points: Sequence[float], times: int) -> None:
    """Put given values at random places, each so many times."""
    planted = torch.tensor(points, dtype=torch.float64).repeat(times)[: len(values)]
    values[_places(source, len(values), len(planted))] = planted


def _tied(source: random.Random, values: Tensor) -> Tensor:
    """Make a third of the entries equal to a neighbour."""
    places = _places(source, len(values) - 1, len(values) // 3)
    values[places + 1] = values[places]
    return values


def _row_of_all(values: Tensor, spec: TensorInput, seed: int, draw: int) -> int | None:
    """Make one row what it is in every input of this shape and these values: a distance is zero there."""
    rows = values.view(-1, spec.shape[-1])
    if len(rows) < ROWS_OF_THEIR_OWN + 1:
        return None
    row = source_of(seed, "", "the row of all", draw).randrange(len(rows))
    rows[row] = _drawn(replace(spec, name=""), seed, Point.SPECIAL, draw).view_as(rows)[row]
    return row


def _even_rows(source: random.Random, values: Tensor, spec: TensorInput, shared: int | None) -> None:
    """Make one row all zeros, if zero is allowed, and another one all alike; not the one of all inputs."""
    rows = values.view(-1, spec.shape[-1])
    free = len(rows) - (shared is not None)
    chosen = source.sample(range(free), min(ROWS_OF_THEIR_OWN, free))
    for number, k in enumerate(chosen[: 1 + allows_zero(spec)]):
        row = rows[k + (shared is not None and k >= shared)]
        row.fill_(0.0 if number == 0 and allows_zero(spec) else row[0].item())
