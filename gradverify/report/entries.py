"""The worst entries of a comparison: which derivative, what backward gave, what it should be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from gradverify.model import Entry, Finding, Part, indexed
from gradverify.report.console import TextStyle
from gradverify.report.layout import INDENT, LABEL, verbatim
from gradverify.report.words import clean, figures, number, plural, small
from gradverify.rules import Family, rule

WORST = 3
"""Entries shown for one finding at normal verbosity."""
_DERIVATIVES = ("backward", "numerical")
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
    bound = f"{sign} {small(entry.error_bound)}" if entry.error_bound else ""
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
