"""Values that no spec asks for: large and small ones, zeros, ties, duplicates, masks of one value.

A formula often has branches (a threshold, a series for small arguments, a guard for zero), and a wrong
backward may hide in one that moderate values never enter. Draw 0 of a regime is what the spec declares;
the draws after it are drawn here, and what cannot be judged there counts for nothing.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

from gradverify.model import Point, TensorInput
from gradverify.model.case import (
    FEWEST_STRATA,
    KEEP_AWAY,
    MIRRORED,
    MODERATE,
    SMALL_VALUES,
    SQUARE,
    UNDECLARED_BESIDE,
    WHOLE_FROM,
    ZEROS,
    allows_zero,
    is_free,
    is_signed,
)
from gradverify.verifier.inputs.values import (
    DOMAINS,
    SMALL,
    draw_integers,
    draw_values,
    source_of,
)

LARGE = (1.0, 100.0)
"""Magnitudes of large values: the usual thresholds (1, 3, 6, 20) lie between, and exp of them is finite."""

FAR = (100.0, 1e4)
"""Magnitudes in the second round, which a thorough run makes: the squares of these, too, are thresholds."""

ROWS_OF_THEIR_OWN = 2
"""Rows of one input that become even: one of zeros, one of a value. A third one is the same in all inputs."""

SMALL_ROW = 1e-3
"""What one row is multiplied by: its squared norm is below the usual thresholds of series, 1e-4 to 1e-6."""

KINDS = 3
"""Of wide draws in a round: large, mirrored and small ones."""

NEAR_AN_END = (1e-4, 0.3)
"""How far values of the domain `unit` are from its ends."""


def draw_undeclared(spec: TensorInput, seed: int, point: Point, draw: int) -> list[float]:
    """The entries of a real floating tensor in row-major order, at a draw that is not declared."""
    if point is Point.WIDE and WHOLE_FROM <= draw < UNDECLARED_BESIDE:
        return _whole(spec, seed, draw)
    if point is Point.WIDE:
        plain = not is_free(spec) or draw == UNDECLARED_BESIDE
        return draw_values(spec, seed, point, draw) if plain else _wide(spec, seed, draw)
    values = draw_values(spec, seed, point, draw)
    source = source_of(seed, spec.name, f"{point} places", draw)
    if (draw - 1) % 2 == ZEROS:
        _tie(source, values, spec)
        if allows_zero(spec):
            _small_row(source, values, spec)
            for place in source.sample(range(len(values)), min(len(values), _zeros_among(values, spec))):
                values[place] = 0.0
    elif spec.structure in SQUARE:
        values = [0.0] * len(values)  # zeros, or a multiple of the identity: all eigenvalues are one
    elif not spec.distinct and not spec.structure:
        shared = _row_of_all(values, spec, seed, draw)
        _even_rows(source, values, spec, shared)
    return values


def draw_duplicates(spec: TensorInput, seed: int, draw: int) -> list[int]:
    """Integers half of which are the same one, or all of them, where that is valid: a special one, if any is.

    Where every label is one to ignore, a mean divides by nothing.
    """
    values = draw_integers(spec, seed, Point.SPECIAL, draw)
    if spec.distinct or not values:
        return values
    source = source_of(seed, spec.name, "duplicates", draw)
    half = (draw - 1) % 2 == ZEROS
    same = int(spec.special[0]) if spec.special and not half else source.choice(values)
    for place in source.sample(range(len(values)), (len(values) + 1) // 2 if half else len(values)):
        values[place] = same
    return values


def draw_one_truth(spec: TensorInput, draw: int) -> list[bool]:
    """A mask that lets everything through, or nothing."""
    return [(draw - 1) % 2 == ZEROS] * math.prod(spec.shape)


def _whole(spec: TensorInput, seed: int, draw: int) -> list[float]:
    """Typical values of one sign; then all beyond a threshold, and all far below it."""
    values, number = draw_values(spec, seed, Point.TYPICAL, 0), draw - WHOLE_FROM
    if not is_free(spec) or spec.structure:
        return values
    if number < 2:
        sign = -1 if number else 1
        return [sign * abs(v) for v in values] if is_signed(spec) and not spec.avoid else values
    place, is_small = divmod(number - 2, 2)
    if len(spec.beside) < 2 * place + 2:
        return values
    nearer, beyond = spec.beside[2 * place : 2 * place + 2]
    source, count = source_of(seed, spec.name, Point.WIDE, draw), len(values)
    shares = [float(f"{1 + (k + source.random()) / count:.3g}") for k in range(count)]
    source.shuffle(shares)
    size = nearer / (8 * count) if is_small else beyond  # of so many entries a norm is below it, too
    found = [
        math.copysign(share * size, v if is_small else beyond)
        for share, v in zip(shares, values, strict=True)
    ]
    low, high = DOMAINS[spec.domain]
    return [
        f if low < f < high and not _is_avoided(spec, f) else v for f, v in zip(found, values, strict=True)
    ]


def _wide(spec: TensorInput, seed: int, draw: int) -> list[float]:
    """Values of magnitudes spread evenly over the decades, in random order and of alternating sign."""
    kind, span = wide_span(spec, draw)
    source = source_of(seed, spec.name, Point.WIDE, draw)
    count = math.prod(spec.shape)
    values = _spread(source, count, span, spec)
    if is_signed(spec):
        values = [v if (count - k + (kind == MIRRORED)) % 2 else -v for k, v in enumerate(values)]
    elif spec.domain == "negative":
        values = [-v for v in values]
    elif spec.domain == "unit" and kind != SMALL_VALUES:
        values = [1 - v for v in values]
    source.shuffle(values)
    if not spec.avoid:
        return values
    moderate = draw_values(spec, seed, Point.WIDE, draw)
    return [m if _is_avoided(spec, v) else v for v, m in zip(values, moderate, strict=True)]


def _spread(source: random.Random, count: int, span: tuple[float, float], spec: TensorInput) -> list[float]:
    """One short decimal from each of the largest of several logarithmic strata, in ascending order."""
    strata, digits, margin = strata_of(count, span, spec)
    places = (
        (k + margin + (1 - 2 * margin) * source.random()) / strata for k in range(strata - count, strata)
    )
    return [float(f"{span[0] * (span[1] / span[0]) ** place:.{digits}e}") for place in places]


def wide_span(spec: TensorInput, draw: int) -> tuple[int, tuple[float, float]]:
    """The kind of an undeclared wide draw, and between which magnitudes it lies."""
    kind = (draw - 1) % KINDS
    large = LARGE if draw - 1 < KINDS else FAR
    return kind, NEAR_AN_END if spec.domain == "unit" else SMALL if kind == SMALL_VALUES else large


def strata_of(count: int, span: tuple[float, float], spec: TensorInput) -> tuple[int, int, float]:
    """How many strata, digits behind the first one, and the share of a stratum left free at each end."""
    strata = max(count, FEWEST_STRATA) if span in (LARGE, FAR) else count
    digits = 2 + max(0, math.ceil(math.log10(max(count, 1) / 50)))
    return strata, digits, 0.25 if spec.distinct else 0.0


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


def _small_row(source: random.Random, values: list[float], spec: TensorInput) -> None:
    """Make one row small as a whole, of several: series for a small norm begin there, and nowhere else."""
    width = spec.shape[-1] if spec.shape else 1
    count = len(values) // width if width else 0
    if count > 1:
        start = width * source.randrange(count)
        values[start : start + width] = [SMALL_ROW * v for v in values[start : start + width]]


def _row_of_all(values: list[float], spec: TensorInput, seed: int, draw: int) -> int | None:
    """Make one row what it is in every input of this shape and these values: a distance is zero there."""
    width = spec.shape[-1] if spec.shape else 1
    count = len(values) // width if width else 0
    if count < ROWS_OF_THEIR_OWN + 1:
        return None
    row = source_of(seed, "", "the row of all", draw).randrange(count)
    common = draw_values(replace(spec, name=""), seed, Point.SPECIAL, draw)
    values[row * width : (row + 1) * width] = common[row * width : (row + 1) * width]
    return row


def _even_rows(source: random.Random, values: list[float], spec: TensorInput, shared: int | None) -> None:
    """Fill a row with each declared special value and with zeros, if allowed; make another one all alike.

    The row of all inputs stays as it is. A branch on a norm or a sum is entered by a row as a whole.
    """
    width = spec.shape[-1] if spec.shape else 1
    free = [row for row in range(len(values) // width) if row != shared] if width else []
    filled = [*dict.fromkeys((*spec.special, *[0.0] * allows_zero(spec))), math.nan]
    rows = source.sample(free, min(max(ROWS_OF_THEIR_OWN, len(filled)), len(free)))
    for row, value in zip(rows, filled, strict=False):
        start = row * width
        values[start : start + width] = [values[start] if math.isnan(value) else value] * width
