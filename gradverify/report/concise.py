"""The concise report: a line for each finding, in the form that editors and `grep` take, then the summary."""

from __future__ import annotations

from rich.text import Text

from gradverify.model import Finding, Location, Report, TargetReport, Verdict
from gradverify.report import finding as one
from gradverify.report.console import TextStyle, emit
from gradverify.report.finding import heads_of, short_name
from gradverify.report.layout import spot
from gradverify.report.targets import because, is_shown
from gradverify.report.text import summary_lines
from gradverify.report.words import clean, figures

_SAID = (Verdict.FAILED, Verdict.INCONCLUSIVE, Verdict.UNCHECKED)
"""Verdicts of which a line must say something, with a finding or without."""


def render_concise(report: Report, style: TextStyle) -> str:
    """Return one line for each finding, mistake and target that is not verified; the summary last."""
    lines = [line for target in report.targets for line in _target(target, style)]
    for mistake in report.errors:
        place = f"{spot(mistake.location)}: " if mistake.location else ""
        lines.append(Text(f"{place}{clean(mistake.message)}"))
    if not report.targets and not report.errors:
        return emit([*lines, Text("nothing was checked")], style)
    return emit([*lines, *summary_lines(report, style)], style)


def _target(report: TargetReport, style: TextStyle) -> list[Text]:
    shown = [found for found in report.findings if is_shown(found, style)]
    lines = [_line(report, found) for found in shown]
    if not lines and report.status in _SAID:
        where = Location(report.target.file, report.target.line)
        lines = [Text(f"{spot(where)}: {clean(report.target.name)}: {clean(because(report.status, report))}")]
    return lines


def _line(report: TargetReport, found: Finding) -> Text:
    where = found.location or Location(report.target.file, report.target.line)
    case = found.case.id if found.case is not None else ""
    name = clean(f"{report.target.name}[{case}]" if case not in {"", "base"} else report.target.name)
    head = f"{spot(where)}: {one.label(found)} {name}"
    return Text(
        f"{head} {_worst(found)}"
        if found.entries and found.entries.worst
        else f"{head}: {clean(found.message)}"
    )


def _worst(found: Finding) -> str:
    """The worst entry: `y[0,2]/x[0,2]: 0.7925, expected 0.1645 (18/36 wrong)`."""
    if found.entries is None:
        return ""
    entry = found.entries.worst[0]
    actual, expected = figures(entry.actual, entry.expected)
    wrong = f"({found.entries.wrong}/{found.entries.checked} wrong)"
    return f"{short_name(entry, found)}: {actual}, {heads_of(found)[1]} {expected} {wrong}"
