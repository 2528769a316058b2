"""The one console setup, and the last look at every line before it leaves.

Lines are rich `Text` values, so nothing that user code controls is ever read as markup. Here each line
is made safe once more whatever its origin: no control characters, nothing that a CI service would take
for a command, and pure ASCII where the stream cannot carry more.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradverify.report.words import clean

if TYPE_CHECKING:
    from rich.text import Text

_CI_COMMAND = re.compile(r"^(\s*):(?=:)|#(?=#\[)")
"""`::error ...` at the start of a line, or `##[...]` anywhere in it: GitHub Actions obeys both."""


@dataclass(frozen=True)
class TextStyle:
    """How text is to look. The caller decides it from the stream, the options and the environment."""

    width: int | None = None
    """Columns of the terminal; None for a pipe, where nothing is wrapped."""
    color: bool = False
    unicode: bool = True
    """False where the stream is not UTF-8: ASCII marks and map, other characters escaped."""
    verbosity: int = 0
    """-1 findings and summary only, 0 normal, 1 everything, 2 full tracebacks too."""
    findings: str = "below"
    """Where findings are from the list of targets: `below` or `above`."""


def emit(lines: Iterable[Text], style: TextStyle) -> str:
    """Print lines to a string, one line of output each."""
    from rich.console import Console  # noqa: PLC0415 - a style alone needs none of it

    stream = io.StringIO()
    console = Console(
        file=stream,
        force_terminal=style.color,
        color_system="standard" if style.color else None,
        no_color=not style.color,
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=True,
        width=style.width or 80,
        legacy_windows=False,
        force_jupyter=False,  # in a notebook it would display each line, not write it
        _environ={},
    )
    for line in lines:
        console.print(_safe(line, style), soft_wrap=True)
    return stream.getvalue()


def _safe(line: Text, style: TextStyle) -> Text:
    """Return the line, or where it is not safe to print a plain copy that is."""
    line.rstrip()
    plain = clean(line.plain)
    plain = without_commands(plain)
    if not style.unicode:
        plain = plain.encode("ascii", "backslashreplace").decode("ascii")
    return line if plain == line.plain else type(line)(plain)


def without_commands(line: str) -> str:
    """One line in which no CI service finds a command."""
    return _CI_COMMAND.sub(lambda match: f"{match[1] or ''}\\x{ord(match[0][-1]):02x}", line)


def harmless(text: str) -> str:
    """A message of several lines in which neither a terminal nor a CI service finds anything to obey."""
    return "\n".join(without_commands(clean(line)) for line in text.split("\n"))
