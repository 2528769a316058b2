"""How a report is set: labelled fields, hanging indents, source lines with a caret."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from gradverify.model import Frame, Location, RaisedError, Severity, Verdict
from gradverify.report.console import TextStyle
from gradverify.report.words import clean, clean_lines, wrap

INDENT = 2
"""Columns before a field."""
LABEL = 11
"""Columns of a field's label, the space after it included."""
LONGEST_LINE = 120
"""Characters of a source line that are shown: a third of them before the caret."""
STYLES = {
    Severity.ERROR: "bold red",
    Severity.WARNING: "yellow",
    Severity.NOTE: "cyan",
    Verdict.PASSED: "green",
    Verdict.FAILED: "bold red",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.UNCHECKED: "yellow",
    Verdict.SKIPPED: "dim",
    Verdict.XFAILED: "dim",
}
"""Colours, always beside a word or a mark that says the same."""


def hang(prefix: Text, prose: str, style: TextStyle, indent: int, look: str = "") -> list[Text]:
    """Put prose after a prefix; further lines begin at column `indent`."""
    first, *rest = wrap(clean(prose), style.width, cell_len(prefix.plain), indent)
    return [prefix + Text(first, look), *(Text(" " * indent) + Text(line, look) for line in rest)]


def field(label: str, prose: str, style: TextStyle) -> list[Text]:
    """Set one labelled field, wrapped under itself."""
    return hang(_label(label), prose, style, INDENT + LABEL)


def verbatim(label: str, lines: Sequence[str | Text]) -> list[Text]:
    """Set lines that must not be wrapped under one label."""
    margin = " " * (INDENT + LABEL)
    texts = [Text(clean(line)) if isinstance(line, str) else line for line in lines]
    return [(_label(label) if place == 0 else Text(margin)) + line for place, line in enumerate(texts)]


def _label(label: str) -> Text:
    return Text(" " * INDENT) + Text(label.ljust(LABEL), "dim")


def spot(where: Location) -> str:
    """Return `file:line`, or `file:line:column` where the column is known."""
    column = f":{where.column}" if where.column else ""
    return f"{clean(where.file)}:{where.line}{column}"


def pointed(source: str, start: int, end: int, gutter: str = "") -> list[Text]:
    """Set a source line with carets under the characters from `start` up to `end`; none if they are equal.

    A long line is cut around them.
    """
    source, start, end = _cut(source, start, end)
    lines = [Text(gutter + clean(source))]
    if end > start:
        blank = " " * (len(gutter) + cell_len(clean(source[:start])))
        if gutter.endswith("| "):
            blank = " " * (len(gutter) - 2) + "| " + blank[len(gutter) :]
        lines.append(Text(blank) + Text("^" * max(1, cell_len(clean(source[start:end]))), "bold red"))
    return lines


def _cut(source: str, start: int, end: int) -> tuple[str, int, int]:
    """Return what is shown of a line, and where the characters from `start` up to `end` are in it."""
    if len(source) <= LONGEST_LINE:
        return source, start, end
    first = max(0, min(start - LONGEST_LINE // 3, len(source) - LONGEST_LINE))
    before, after = "…" * (first > 0), "…" * (first + LONGEST_LINE < len(source))
    moved = len(before) - first
    shown = before + source[first : first + LONGEST_LINE] + after
    return shown, start + moved, min(end + moved, len(shown))


def raised(error: RaisedError, style: TextStyle) -> list[Text]:
    """Set an exception of the user's: type, message, and the user's frames, the raising one last."""
    first, *rest = clean_lines(error.message) or [""]
    prose = f"{error.type}: {first}" if first else error.type
    lines = field("error", prose, style)
    lines += verbatim("", [*rest, *clean_lines(f"after {error.after}")] if error.after else rest)
    if style.verbosity > 1 and error.traceback:
        return lines + verbatim("", clean_lines(error.traceback))
    for frame in error.frames:
        lines += _frame(frame)
    return lines


def _frame(frame: Frame) -> list[Text]:
    """Set one frame: its place, then its source line with a caret."""
    margin = " " * (INDENT + LABEL)
    place = f"{spot(Location(frame.file, frame.line))} in {clean(frame.function)}"
    lines = [Text(f"{margin}  {place}")]
    if frame.source:
        lines += [Text(f"{margin}    ") + line for line in pointed(frame.source, *frame.caret)]
    return lines


def captured(text: str, style: TextStyle) -> list[Text]:
    """Set what user code printed, each line behind a bar so that it is not taken for ours."""
    lines = clean_lines(text)
    if not lines:
        return []
    kept = lines if style.verbosity > 0 else lines[:CAPTURED_LINES]
    if len(kept) < len(lines):
        kept = [*kept, f"({len(lines) - len(kept)} more lines: -v)"]
    return verbatim("printed", [f"| {line}" for line in kept])


CAPTURED_LINES = 10
"""Lines of captured output shown at normal verbosity."""
