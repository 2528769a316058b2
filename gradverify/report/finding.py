"""One finding in full: its heading, then its fields, down to the command that shows it again."""

from __future__ import annotations

from rich.text import Text

from gradverify.model import CasePoint, Finding, Location, Point, Severity
from gradverify.report.console import TextStyle
from gradverify.report.entries import entry_lines
from gradverify.report.fixes import patches_of, signed_lines
from gradverify.report.jacobian_map import map_lines
from gradverify.report.layout import STYLES, captured, field, raised, spot, verbatim
from gradverify.report.words import clean, figures, plural

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
    smaller = ", ".join(f"{name}={n}" for name, n in there.sizes if there.sizes != case.sizes)
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
