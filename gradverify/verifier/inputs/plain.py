"""The plainest values for a tensor: what a person can follow by hand when a failure is shown at them."""

from __future__ import annotations

import math

from gradverify.model import Point, TensorInput
from gradverify.verifier.inputs.values import (
    DOMAINS,
    draw_values,
    interval_of,
    is_symmetric,
    kept_away_from,
    source_of,
)

PLAIN_DRAWS = 3
"""Draws worth trying: two of opposite sign among the plainest values, one of more."""

GRIDS = (2, 10)
"""Values are halves where those suffice, else tenths."""

_FINER = 2
"""The draw that takes tenths even where halves suffice: a branch on the data may need a value between."""


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
