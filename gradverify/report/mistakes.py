"""Errors in specs, imports and the configuration: where, what, the line and a caret; several at once."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from gradverify.model import Mistake
from gradverify.report.console import TextStyle, emit
from gradverify.report.layout import captured, hang, pointed, raised, spot
from gradverify.report.words import plural

_CONTINUED = 4
"""Columns before the further lines of a message."""
_GUTTER = 5
"""Columns for the line number beside a source line."""


def render_mistakes(mistakes: Sequence[Mistake], style: TextStyle) -> str:
    """Return the screen of a run that stopped at mistakes, all of them, and a line that counts them."""
    lines = [line for mistake in mistakes for line in mistake_lines(mistake, style)]
    return emit([*lines, Text(), Text(f"{closing(mistakes)}; nothing was checked")], style)


def mistake_lines(mistake: Mistake, style: TextStyle) -> list[Text]:
    """Set one mistake."""
    prefix = Text.assemble((spot(mistake.location), "bold"), ": ") if mistake.location else Text()
    lines = hang(prefix, mistake.message, style, _CONTINUED)
    shown = mistake.raised is not None and mistake.raised.frames
    if mistake.location and mistake.source_line and not shown:
        gutter = f"{mistake.location.line:>{_GUTTER}} | "
        start = max(mistake.location.column - 1, 0)
        end = start + max(mistake.length, 1) if mistake.location.column else start
        lines += pointed(mistake.source_line.rstrip(), start, end, gutter)
    if mistake.raised is not None:
        lines += raised(mistake.raised, style)
    return lines + captured(mistake.captured, style)


def closing(mistakes: Sequence[Mistake]) -> str:
    """Count mistakes by what they are: `2 errors in 1 spec file`, `1 module could not be imported`."""
    parts = []
    for kind, noun in (("spec", "spec file"), ("config", "configuration file")):
        these = [mistake for mistake in mistakes if mistake.kind == kind]
        files = {mistake.location.file for mistake in these if mistake.location}
        within = f" in {plural(len(files), noun)}" if files else f" in the {noun}"
        if these:
            parts.append(plural(len(these), "error") + within)
    imports = sum(mistake.kind == "import" for mistake in mistakes)
    if imports:
        parts.append(f"{plural(imports, 'module')} could not be imported")
    if any(mistake.kind == "usage" for mistake in mistakes):
        parts.append("nothing can be checked: see the error")
    return ", ".join(parts)
