"""Annotations of GitHub Actions: one for each target, worst first, since it shows ten of a step."""

from __future__ import annotations

from gradverify.model import Finding, Mistake, Report, Severity, TargetReport
from gradverify.report.concise import render_concise
from gradverify.report.console import TextStyle, without_commands
from gradverify.report.fixes import fix_words
from gradverify.report.targets import because
from gradverify.report.words import NOT_VERIFIED, clean, in_order, mistakes_in_order, plural, reported

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
