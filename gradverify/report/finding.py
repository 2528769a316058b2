"""What the report says about one finding: heading, entries, exception, change, a map of what is wrong."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest

from rich.cells import cell_len
from rich.text import Text

from gradverify.model import CasePoint, Entry, Finding, JacobianMap, Location, Part, Point, Severity, indexed
from gradverify.report.console import TextStyle
from gradverify.report.fixes import patches_of, signed_lines
from gradverify.report.layout import INDENT, LABEL, STYLES, captured, field, raised, spot, verbatim
from gradverify.report.words import clean, figures, number, plural, small
from gradverify.rules import Family, rule

MAP_INDENT = 4
"""Columns before the map: it is wide, so it begins left of the fields."""

SIGNED = {"-": "red", "+": "green"}
"""Colours of a line that goes and of one that comes."""

DECIDING = frozenset({"GV001", "GV109", "GV902", "GV903"})
"""Warnings that make a target inconclusive or unchecked."""


def label(finding: Finding) -> str:
    """Return the code, with the severity unless its verdict says it: `GV110 warning`."""
    severity = f" {finding.severity}" if has_severity(finding) else ""
    expected = " (expected)" if finding.expected else ""
    return f"{finding.code}{severity}{expected}"


def has_severity(finding: Finding) -> bool:
    """Tell whether the severity must be said: an error fails its target, some warnings decide the verdict."""
    decides = finding.severity is Severity.WARNING and finding.code in DECIDING
    return finding.severity is not Severity.ERROR and not decides


def look(finding: Finding) -> str:
    """Return the style of a finding's code."""
    return STYLES[finding.severity]


def fields(finding: Finding, style: TextStyle, before: Finding | None = None) -> list[Text]:
    """Set everything below a finding's heading.

    `before` is the finding just above it on the same target: unless verbose, only what this one adds is set.
    """
    above = before if style.verbosity <= 0 else None

    def is_new(name: str) -> bool:
        return above is None or getattr(finding, name) != getattr(above, name)

    lines = fix_lines(finding) if is_new("changes") else []
    if finding.cause and is_new("cause"):
        lines += field("cause", finding.cause + factor_words(finding.factor), style)
    if finding.hint and is_new("hint"):
        lines += field("hint", finding.hint, style)
    if finding.case is not None and is_new("case"):
        lines += field("case", case_words(finding.case, finding.cases_affected), style)
    if finding.raised is not None:
        lines += raised(finding.raised, style)
    if above is None:
        lines += entry_lines(finding, style)
        if finding.map is not None and (drawn := map_lines(finding.map, style, MAP_INDENT)):
            lines += [Text(), *drawn, Text()]
        if not _same_inputs(finding, before):
            lines += _inputs(finding, style)
        lines += captured(finding.captured, style)
    if finding.reproduce and is_new("reproduce"):
        lines += verbatim("reproduce", [finding.reproduce])
    return lines


def fix_lines(finding: Finding) -> list[Text]:
    """Set the lines of backward that make the gradient right, with those that they replace."""
    lines: list[Text] = []
    for patch in patches_of([finding]):
        signed = [Text(clean(line), SIGNED[line[0]]) for line in signed_lines(patch)]
        lines += verbatim("" if lines else "fix", [spot(Location(patch.path, patch.line)), *signed])
    return lines


def factor_words(factor: float | None) -> str:
    """Say a constant factor, with as many digits as it takes to tell it from 1."""
    if factor is None:
        return ""
    text, _ = figures(factor, 1.0)
    return f", factor {text.rstrip('0').rstrip('.') if '.' in text and 'e' not in text else text}"


def case_words(case: CasePoint, affected: int) -> str:
    """Say on which inputs it was found."""
    words = [case.id]
    if case.point is not Point.TYPICAL:
        words.append(f"{case.point} values")
    if case.draw:
        words.append(f"draw {case.draw}")
    others = f" (and {plural(affected - 1, 'other case')})" if affected > 1 else ""
    return ", ".join(words) + others + _shrunk_words(case)


def _shrunk_words(case: CasePoint) -> str:
    """Say at which smaller or plainer inputs it is shown."""
    there = case.shrunk
    if there is None:
        return ""
    named = case.sizes and there.sizes != case.sizes  # written lengths have no names that anybody knows
    smaller = ", ".join(f"{name}={n}" for name, n in there.sizes if named)
    smaller = smaller or ("smaller tensors" if there.id != case.id else "")
    at = f" at {smaller}" if smaller else ""
    plain = " with plain values" if there.point is Point.PLAIN else ""
    return f"; shown{at}{plain}"


def _same_inputs(finding: Finding, before: Finding | None) -> bool:
    if before is None or not finding.shown_inputs:
        return False
    return (finding.case, finding.shown_inputs) == (before.case, before.shown_inputs)


def _inputs(finding: Finding, style: TextStyle) -> list[Text]:
    names = [clean(shown.name) for shown in finding.shown_inputs]
    longest = max(map(len, names), default=0)
    lines: list[Text] = []
    for place, shown in enumerate(finding.shown_inputs):
        lines += field("" if place else "inputs", f"{names[place].ljust(longest)} = {shown.text}", style)
    return lines


WORST = 3
"""Entries shown for one finding at normal verbosity."""
_DERIVATIVES = ("backward", "expected")
_VALUES = ("value", "reference")


@dataclass(frozen=True)
class Row:
    """One entry in figures."""

    name: str
    actual: str
    expected: str
    bound: str
    difference: str


def entry_lines(finding: Finding, style: TextStyle) -> list[Text]:
    """Set the worst entries: as a table where it fits the width, else each on lines of its own."""
    if finding.entries is None or not finding.entries.worst:
        return []
    found = finding.entries
    shown = found.worst if style.verbosity > 0 else found.worst[:WORST]
    heads = heads_of(finding)
    rows = [row_of(entry, finding, style) for entry in shown]
    lines = _table(rows, heads)
    if style.width is not None and INDENT + LABEL + max(map(cell_len, lines)) > style.width:
        lines = [line for row in rows for line in _stacked(row, heads)]
    if found.wrong > len(shown):
        lines.append(f"and {plural(found.wrong - len(shown), 'more entry', 'more entries')}")
    return verbatim("worst", lines)


def heads_of(finding: Finding) -> tuple[str, str]:
    """Return what is compared with what, in words."""
    reference = finding.entries is not None and finding.entries.compared_with == "reference"
    return _VALUES if reference else _DERIVATIVES


def short_name(entry: Entry, finding: Finding) -> str:
    """Name an entry in short: `y[0,2]/x[0,2]`."""
    return _name(entry, finding).removeprefix("d ").replace(" / d ", "/")


def row_of(entry: Entry, finding: Finding, style: TextStyle) -> Row:
    """Put one entry into figures."""
    actual, expected = figures(entry.actual, entry.expected)
    sign = "±" if style.unicode else "+-"
    is_known = bool(entry.error_bound) and math.isfinite(entry.error_bound)
    bound = f"{sign} {small(entry.error_bound)}" if is_known else ""
    difference = number(abs(entry.actual - entry.expected))
    return Row(_name(entry, finding), actual, expected, bound, difference)


def _name(entry: Entry, finding: Finding) -> str:
    """Name an entry as a user would write it: `d y[0,2] / d x[0,2]`, `y[0,2]`, `grad x[0,2]`."""
    bottom = clean(finding.input or "input")
    if entry.input is None:
        whole = f"grad {bottom}" if finding.output is None and finding.input else _output(finding)
        return indexed(whole, entry.output)
    of_gradients = finding.entries is not None and finding.entries.compared_with == "reference"
    if of_gradients and not entry.output:
        return indexed(f"grad {bottom}", entry.input)
    return f"d {indexed(_output(finding), entry.output)} / d {indexed(bottom, entry.input)}"


def _output(finding: Finding) -> str:
    """Name what is differentiated: as the map does, so that both agree.

    Without a map the first output is `y`, the others `y1`, `y2`: forward gives them no names. Where
    gradients are differentiated again it is `grad`, and the message says of which input.
    """
    if finding.map is not None and finding.map.row_labels:
        return clean(_without_index(finding.map.row_labels[0]))
    if finding.output is None or rule(finding.code).family is Family.GRADGRADCHECK:
        return "grad"
    return f"y{finding.output or ''}"


def _without_index(label: str) -> str:
    """`y` of `y[0,1]`, `y[0].real` and `y.real`."""
    return label.removesuffix(f".{Part.REAL.name.lower()}").partition("[")[0]


def _table(rows: Sequence[Row], heads: tuple[str, str]) -> list[str]:
    cells = [
        ("", *heads, "", "difference"),
        *((r.name, r.actual, r.expected, r.bound, r.difference) for r in rows),
    ]
    widths = [max(cell_len(line[column]) for line in cells) for column in range(5)]
    lines = []
    for name, actual, expected, bound, difference in cells:
        figures_ = f"{actual.rjust(widths[1])}  {expected.rjust(widths[2])}"
        name_ = name + " " * (widths[0] - cell_len(name))
        lines.append(f"{name_}  {figures_} {bound.ljust(widths[3])}  {difference.rjust(widths[4])}")
    return lines


def _stacked(row: Row, heads: tuple[str, str]) -> list[str]:
    """Set one entry on four lines, for names too long for the table."""
    pairs = (
        (heads[0], row.actual),
        (heads[1], f"{row.expected}  {row.bound}"),
        ("difference", row.difference),
    )
    return [row.name, *(f"  {head:<12}{text}" for head, text in pairs)]


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
