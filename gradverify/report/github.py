"""Annotations of GitHub Actions: one for each target, worst first, since it shows ten of a step.

The concise report: a line for each finding, in the form that editors and `grep` take, then the summary.
"""

from __future__ import annotations

from rich.text import Text

from gradverify.model import Finding, Location, Mistake, Report, Severity, TargetReport, Verdict
from gradverify.report import finding as one
from gradverify.report.console import TextStyle, emit, without_commands
from gradverify.report.finding import heads_of, short_name
from gradverify.report.fixes import fix_words
from gradverify.report.layout import spot
from gradverify.report.targets import because, is_shown
from gradverify.report.text import summary_lines
from gradverify.report.words import (
    NOT_VERIFIED,
    clean,
    figures,
    in_order,
    mistakes_in_order,
    plural,
    reported,
)

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
    """The worst entry: `y[0,2]/x[0,2]: 0.7925, numerical 0.1645 (18/36 wrong)`."""
    if found.entries is None:
        return ""
    entry = found.entries.worst[0]
    actual, expected = figures(entry.actual, entry.expected)
    wrong = f"({found.entries.wrong}/{found.entries.checked} wrong)"
    return f"{short_name(entry, found)}: {actual}, {heads_of(found)[1]} {expected} {wrong}"


_LINES = 4
"""Findings named in one annotation; the log has them all."""


def render_github(report: Report) -> str:
    """Return one annotation for each mistake, each target that is not verified and each that warns.

    The concise report is below them, for whoever opens the log.
    """
    lines = [_mistake(mistake) for mistake in mistakes_in_order(report)]
    bad = [target for target in in_order(report) if target.status in NOT_VERIFIED]
    lines += [_annotation("error", target) for target in sorted(bad, key=_rank)]
    warned = [target for target in in_order(report) if target.status not in NOT_VERIFIED and reported(target)]
    lines += [_annotation("warning", target) for target in warned]
    return "".join(f"{line}\n" for line in lines) + render_concise(report, TextStyle())


def _rank(target: TargetReport) -> tuple[int, int, float]:
    """Order by verdict, then by how many errors there are, then by how wrong the worst is."""
    errors = [found for found in reported(target) if found.severity is Severity.ERROR]
    return NOT_VERIFIED.index(target.status), -len(errors), -max((f.badness for f in errors), default=0.0)


def _annotation(level: str, report: TargetReport) -> str:
    found = reported(report)
    codes = ", ".join(dict.fromkeys(one.code for one in found))
    title = f"{report.target.name}: {report.status}" + (f" ({codes})" if codes else "")
    lines = [line for one in found[:_LINES] for line in _said(one)]
    if len(found) > _LINES:
        lines.append(f"and {plural(len(found) - _LINES, 'more finding')}")
    return command(
        level, report.target.file, report.target.line, 0, title, lines or [because(report.status, report)]
    )


def _said(found: Finding) -> list[str]:
    extra = [found.hint, found.reproduce, *fix_words(found)]
    return [f"{found.code}: {found.message}", *filter(None, extra)]


def _mistake(mistake: Mistake) -> str:
    where = mistake.location
    file, line, column = (where.file, where.line, where.column) if where else ("", 0, 0)
    return command("error", file, line, column, f"{mistake.kind} error", [mistake.message])


def command(level: str, file: str, line: int, column: int, title: str, lines: list[str]) -> str:
    """Return one workflow command; what is 0 or empty is left out."""
    given = {"file": file, "line": line or "", "col": column or "", "title": title}
    properties = ",".join(f"{name}={_property(str(value))}" for name, value in given.items() if value)
    return f"::{level} {properties}::{_data('%0A'.join(_plain(text) for text in lines))}"


def _plain(text: str) -> str:
    return without_commands(clean(text)).replace("%", "%25")


def _data(text: str) -> str:
    """Carry a text whose `%` are escaped already."""
    return text.replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(_plain(text)).replace(":", "%3A").replace(",", "%2C")
