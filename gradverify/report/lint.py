"""What `lint` prints: findings with their source line, or a line each; then one line that sums up."""

from __future__ import annotations

from collections import Counter

from rich.text import Text

from gradverify.model import LintFinding, LintReport, Mistake, Severity
from gradverify.report.console import TextStyle, emit
from gradverify.report.github import command
from gradverify.report.json_v1 import Json, document_text
from gradverify.report.layout import STYLES, hang, pointed, spot
from gradverify.report.text import mistake_lines
from gradverify.report.words import clean, listed, plural
from gradverify.rules import rule

SCHEMA = "gradverify-lint/1"
"""Of the JSON report; changes when a reader of the previous version would break."""
_CONTINUED = 4
"""Columns before the further lines of a message."""
_GUTTER = 5
"""Columns for the line number beside a source line."""
_PAGES = 3
"""Pages named at the end."""
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}
"""What GitHub calls them."""


def render_lint(report: LintReport, style: TextStyle) -> str:
    """Return the findings for a person to read: place, message, the source line with a caret, what to try."""
    lines: list[Text] = []
    for found in report.findings:
        lines += [*_finding(found, style), Text()]
    for mistake in report.errors:
        lines += [*mistake_lines(mistake, style), Text()]
    return emit([*lines, *_closing(report)], style)


def render_lint_concise(report: LintReport, style: TextStyle) -> str:
    """Return one line for each finding and each file that cannot be read; the summary last."""
    lines = [_heading(found) + Text(clean(found.message)) for found in report.findings]
    for mistake in report.errors:
        place = f"{spot(mistake.location)}: " if mistake.location else ""
        lines.append(Text(f"{place}{clean(mistake.message)}"))
    return emit([*lines, *_closing(report)], style)


def render_lint_github(report: LintReport) -> str:
    """Return one annotation for each finding and each file that cannot be read, on its own line."""
    style = TextStyle()
    lines = []
    for found in report.findings:
        where, title = found.location, f"{found.code} {found.function}"
        said = [found.message, *filter(None, [found.hint])]
        lines.append(command(_LEVELS[found.severity], where.file, where.line, where.column, title, said))
    for mistake in report.errors:
        file, line = (mistake.location.file, mistake.location.line) if mistake.location else ("", 0)
        lines.append(command("error", file, line, 0, "not read", [mistake.message]))
    return "".join(f"{line}\n" for line in lines) + render_lint_concise(report, style)


def _heading(found: LintFinding) -> Text:
    severity = "" if found.severity is Severity.ERROR else f" {found.severity}"
    return Text.assemble(
        (spot(found.location), "bold"),
        ": ",
        (f"{found.code}{severity}", STYLES[found.severity]),
        f" {clean(found.function)}: ",
    )


def _finding(found: LintFinding, style: TextStyle) -> list[Text]:
    lines = hang(_heading(found), found.message, style, _CONTINUED)
    start = found.location.column - 1
    gutter = f"{found.location.line:>{_GUTTER}} | "
    lines += pointed(found.source_line, start, start + found.length, gutter)
    if found.hint:
        lines += hang(Text(" " * (_GUTTER + 1) + "= hint: "), found.hint, style, _GUTTER + 9)
    return lines


def _closing(report: LintReport) -> list[Text]:
    looked_at = f"{plural(report.functions, 'Function')} in {plural(report.files, 'file')}"
    nothing = "nothing found" if report.functions or report.errors else "nothing to lint"
    lines = [Text(f"{', '.join(_counts(report)) or nothing}: {looked_at}")]
    codes = list(dict.fromkeys(found.code for found in report.findings))
    if codes:
        pages = listed([f"gradverify explain {code}" for code in codes[:_PAGES]])
        lines.append(Text(f"Why and what to do: {pages}"))
    return lines


def _counts(report: LintReport) -> list[str]:
    counts = Counter(found.severity for found in report.findings)
    words = [plural(counts[severity], severity.value) for severity in Severity if counts[severity]]
    if report.waived:
        words.append(f"{report.waived} waived by noqa")
    if report.errors:
        words.append(f"{plural(len(report.errors), 'file')} not read")
    return words


def render_lint_json(report: LintReport) -> str:
    """Return the report as JSON."""
    counts = Counter(found.severity for found in report.findings)
    document: Json = {
        "schema": SCHEMA,
        "gradverify": report.gradverify_version,
        "exit_code": int(report.exit_code),
        "summary": {
            "files": report.files,
            "functions": report.functions,
            **{f"{severity.value}s": counts[severity] for severity in Severity},
            "waived": report.waived,
        },
        "findings": [_json_finding(found) for found in report.findings],
        "errors": [_json_error(mistake) for mistake in report.errors],
    }
    return document_text(document)


def _json_finding(found: LintFinding) -> Json:
    return {
        "code": found.code,
        "name": rule(found.code).name,
        "severity": found.severity.value,
        "file": found.location.file,
        "line": found.location.line,
        "column": found.location.column,
        "function": found.function,
        "message": found.message,
        "hint": found.hint,
    }


def _json_error(mistake: Mistake) -> Json:
    where = mistake.location
    return {
        "file": where.file if where else "",
        "line": where.line if where else 0,
        "column": where.column if where else 0,
        "message": mistake.message,
    }
