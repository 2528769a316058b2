"""The picture of where a Jacobian is wrong: one character for each entry, darker for larger differences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest

from rich.cells import cell_len
from rich.text import Text

from gradverify.model import JacobianMap
from gradverify.report.console import TextStyle
from gradverify.report.words import clean, small

_UNICODE = "·░▒▓█"
_ASCII = ".:+#@"
_UNJUDGED = "?"
_LOOKS = ("dim", "", "yellow", "red", "bold red")
_LAST_INDEX = re.compile(r"(\d+)\]$")
_PARTS = ".real", ".imag"
_GAP = "   "
"""Between the picture and its legend."""


@dataclass(frozen=True)
class _Group:
    """Neighbouring columns that differ in their last index only, under one heading."""

    heading: str
    columns: tuple[int, ...]

    @property
    def width(self) -> int:
        """Columns of text it takes: one character each and a space between."""
        return max(cell_len(self.heading), 2 * len(self.columns) - 1)


def map_lines(picture: JacobianMap, style: TextStyle, indent: int) -> list[Text]:
    """Draw the map, its legend at the right; nothing if it does not fit the width."""
    if not picture.levels:
        return []
    groups = _groups(picture.column_labels)
    labels = [clean(label) for label in picture.row_labels]
    margin = max(map(cell_len, labels), default=0)
    body = [Text("  ".join(group.heading.ljust(group.width) for group in groups), "dim")]
    body += [_row(levels, groups, style) for levels in picture.levels]
    legend = _legend(picture, style)
    drawn = margin + 2 + max(cell_len(line.plain) for line in body)
    width = drawn + len(_GAP) + max(cell_len(line.plain) for line in legend)
    if style.width is not None and indent + width > style.width:
        return []
    rows = zip_longest(["", *labels], body, legend, fillvalue=None)
    return [_line(label or "", row, entry, (indent, margin, drawn)) for label, row, entry in rows]


def _line(label: str, row: Text | None, entry: Text | None, columns: tuple[int, int, int]) -> Text:
    """Set a row's label, its part of the picture and a line of the legend at their columns."""
    indent, margin, drawn = columns
    line = Text.assemble(" " * (indent + margin - cell_len(label)), label, "  ", row or "")
    if entry is None:
        return line
    return Text.assemble(line, " " * (indent + drawn - cell_len(line.plain)), _GAP, entry)


def _groups(labels: Sequence[str]) -> list[_Group]:
    """Group columns by all indices but the last: `x[0,:]`; both parts of a complex number, `z[0]`."""

    def heading(place: int) -> str:
        name = clean(labels[place])
        return name[: -len(_PARTS[0])] if name.endswith(_PARTS) else _LAST_INDEX.sub(":]", name)

    return [_Group(name, tuple(places)) for name, places in groupby(range(len(labels)), heading)]


def _row(levels: Sequence[int], groups: Sequence[_Group], style: TextStyle) -> Text:
    row = Text()
    for group in groups:
        if row:
            row += Text("  ")
        for place, column in enumerate(group.columns):
            row = Text.assemble(row, " " * (place > 0), _cell(levels[column], style))
        row += Text(" " * (group.width - (2 * len(group.columns) - 1)))
    return row


def _cell(level: int, style: TextStyle) -> Text:
    if level < 0:
        return Text(_UNJUDGED, "dim")
    return Text((_UNICODE if style.unicode else _ASCII)[level], _LOOKS[level])


def _legend(picture: JacobianMap, style: TextStyle) -> list[Text]:
    words = ["right", *(f"< {small(bound)}" for bound in picture.thresholds), "larger"]
    used = {level for row in picture.levels for level in row}
    lines = [Text("|difference|", "dim")]
    lines += [
        Text.assemble(_cell(level, style), f" {word}") for level, word in enumerate(words) if level in used
    ]
    if -1 in used:
        lines.append(Text.assemble(_cell(-1, style), " not judged"))
    if picture.column_labels[0].endswith(_PARTS):
        lines.append(Text("two of each: its real and imaginary part", "dim"))
    return lines
