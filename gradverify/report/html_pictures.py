"""Pictures of the HTML report, as SVG: Jacobians, their difference, an error beside the tolerance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from gradverify.model import Entry, JacobianMap
from gradverify.report.words import number, small

_CELL = 14
"""Units of a picture for one entry."""
_GAP = 1
"""Units between entries."""
_LEVELS = ("#eef1f4", "#fbd5a5", "#f59b4c", "#d9542b", "#8c1c13")
"""Differences: right, then four levels of wrong."""
_UNJUDGED = "#b9b4d8"
_NONFINITE = "#c020c0"

_LOWEST, _HIGHEST = -17, 3
"""Decades of relative error on the scale: below float64's rounding, and above a factor of a hundred."""

_OF_A_LETTER = 6.5
"""Units of the picture that a letter of its words takes at most, on average."""


def jacobians(picture: JacobianMap, heads: tuple[str, str], escape: Callable[[str], str]) -> str:
    """Return the Jacobian as backward has it, as it should be, and where they differ."""
    figures = []
    if picture.actual and picture.expected:
        largest = max((abs(v) for row in picture.expected for v in row if math.isfinite(v)), default=0.0)
        for head, values in zip(heads, (picture.actual, picture.expected), strict=True):
            figures.append(_values(picture, values, head, largest or 1.0, escape))
    figures.append(_difference(picture, escape))
    rows, columns = _span(picture.row_labels), _span(picture.column_labels)
    said = f"rows {escape(rows)}; columns {escape(columns)}"
    return f'<div class="pictures">{"".join(figures)}</div><p class="about">{said}</p>'


def error_scale(entry: Entry, rtol: float) -> str:
    """Return the worst entry's relative error on a scale of decades, with the tolerance marked on it."""
    if not (math.isfinite(entry.actual) and math.isfinite(entry.expected)):
        return ""
    size = abs(entry.expected) or abs(entry.actual)
    if not size:
        return ""
    error, known = abs(entry.actual - entry.expected) / size, entry.error_bound / size
    marks = [_mark(error, "#8c1c13", f"error {small(error)}", 12)]
    if rtol > 0:
        marks.append(_mark(rtol, "#0b57a4", f"tolerance {small(rtol)}", 30))
    if 0 < known < math.inf:
        marks.append(_mark(known, "#5c6470", f"measured to {small(known)}", 48))
    line = '<line x1="10" y1="60" x2="390" y2="60" stroke="#c3c8ce"/>'
    ticks = "".join(
        f'<text x="{_at(10.0**d):.0f}" y="72" font-size="9" fill="#5c6470" text-anchor="middle">1e{d}</text>'
        for d in range(-16, 3, 4)
    )
    words = "relative error of the worst entry, and the tolerance"
    opened = f'<svg class="scale" viewBox="0 0 400 76" role="img" aria-label="{words}">'
    return f"{opened}{line}{ticks}{''.join(marks)}</svg>"


def _mark(value: float, color: str, words: str, y: int) -> str:
    """Return a line down to the scale with words beside it; the lowest words keep clear of the next line."""
    x, lowest = _at(value), y > 40
    has_room = x - 5 > _OF_A_LETTER * len(words)
    anchor, shift = ("end", -5) if has_room and (x > 260 or lowest) else ("start", 5)
    halo = 'paint-order="stroke" stroke="#fff" stroke-width="3"'  # where it crosses another line
    at = f'x="{x + shift:.1f}" y="{y}" text-anchor="{anchor}" {halo}'
    return (
        f'<line x1="{x:.1f}" y1="{y - 8}" x2="{x:.1f}" y2="60" stroke="{color}" stroke-width="2"/>'
        f'<text {at} font-size="11" fill="{color}">{words}</text>'
    )


def _at(value: float) -> float:
    decades = min(max(math.log10(value), _LOWEST), _HIGHEST) if value > 0 else _LOWEST
    return 10 + 380 * (decades - _LOWEST) / (_HIGHEST - _LOWEST)


def _values(
    picture: JacobianMap,
    values: Sequence[Sequence[float]],
    head: str,
    largest: float,
    escape: Callable[[str], str],
) -> str:
    cells = [
        (i, j, _diverging(value / largest) if math.isfinite(value) else _NONFINITE, number(value))
        for i, row in enumerate(values)
        for j, value in enumerate(row)
    ]
    return _figure(picture, cells, f"{head} (blue − to red +, full at ±{small(largest)})", escape)


def _difference(picture: JacobianMap, escape: Callable[[str], str]) -> str:
    first, second, third = map(small, picture.thresholds)
    words = ("right", f"< {first}", f"< {second}", f"< {third}", f"at least {third}", "not judged")
    cells = [
        (i, j, _UNJUDGED if level < 0 else _LEVELS[level], words[level])
        for i, row in enumerate(picture.levels)
        for j, level in enumerate(row)
    ]
    used = {level for row in picture.levels for level in row}
    legend = ", ".join(
        f'<span style="color:{_UNJUDGED if level < 0 else _LEVELS[level]}">■</span> {escape(words[level])}'
        for level in sorted(used)
    )
    return _figure(picture, cells, "|difference|", escape, legend)


def _figure(
    picture: JacobianMap,
    cells: Sequence[tuple[int, int, str, str]],
    caption: str,
    escape: Callable[[str], str],
    legend: str = "",
) -> str:
    rows, columns = len(picture.levels), len(picture.levels[0]) if picture.levels else 0
    step = _CELL + _GAP
    labels, heads = [
        [escape(name) for name in names] for names in (picture.row_labels, picture.column_labels)
    ]
    rectangles = "".join(
        f'<rect x="{j * step}" y="{i * step}" width="{_CELL}" height="{_CELL}" fill="{color}">'
        f"<title>{labels[i]} by {heads[j]}: {escape(words)}</title></rect>"
        for i, j, color, words in cells
    )
    side = max(rows, columns, 8) * step  # a small Jacobian is not blown up
    opened = f'<svg viewBox="0 0 {side} {rows * step}" role="img" aria-label="{escape(caption)}">'
    words = f"{escape(caption)}{': ' + legend if legend else ''}"
    ground = f'<rect width="{columns * step}" height="{rows * step}" fill="#dfe3e8"/>'
    return f"<figure>{opened}{ground}{rectangles}</svg><figcaption>{words}</figcaption></figure>"


def _diverging(share: float) -> str:
    """Blue for negative, white for zero, red for positive; a root, so that small values are seen."""
    strength = min(1.0, abs(share)) ** 0.5
    low = round(255 - 200 * strength)
    return (
        f"#{low:02x}{round(255 - 130 * strength):02x}ff"
        if share < 0
        else f"#ff{round(255 - 150 * strength):02x}{low:02x}"
    )


def _span(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{labels[0]} … {labels[-1]}" if labels else ""
