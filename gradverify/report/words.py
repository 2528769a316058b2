"""Words and numbers of the reports: visible characters, wrapping, plurals, figures, indices.

What every machine format needs to know of a report: where things are, what is worst, where a page is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from rich.cells import cell_len

from gradverify.model import Finding, Location, Mistake, Report, Severity, TargetReport, Verdict

DIGITS = 4
"""Significant digits of a reported number; more only where fewer would hide a difference."""
_ALL_DIGITS = 17
"""Significant digits that tell any two float64 apart."""
_WORD = re.compile(r"(?:[^\s`]*`[^`]*`)+\S*|\d+ [a-z]\S*|\S+")
"""What is never broken: a word, a quoted command with its spaces, a count with its noun."""


def clean(text: str) -> str:
    r"""Make every character visible: `\x1b` for an escape, `\n` for a newline, `\u202e` for an override."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def clean_lines(text: str) -> list[str]:
    """Split text that may have several lines, and make each visible."""
    lines = [clean(line.rstrip("\r").expandtabs()) for line in text.strip("\n").split("\n")]
    return lines if text.strip() else []


def wrap(text: str, width: int | None, first: int, rest: int) -> list[str]:
    """Break prose between words so that it ends before `width`, beginning at column `first`, then `rest`.

    A word longer than a line overflows: paths and commands stay in one piece.
    """
    if width is None or first + cell_len(text) <= width:
        return [text]
    lines: list[str] = []
    line, room = "", width - first
    for word in _WORD.findall(text):
        longer = f"{line} {word}" if line else word
        if line and cell_len(longer) > room:
            lines.append(line)
            line, room = word, width - rest
        else:
            line = longer
    return [*lines, line]


def plural(count: int, noun: str, many: str = "") -> str:
    """Return a count with its noun: `1 case`, `3 cases`."""
    return f"{count} {noun if count == 1 else many or noun + 's'}"


def listed(parts: Sequence[str]) -> str:
    """Join with commas and a final `and`."""
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def number(value: float, digits: int = DIGITS) -> str:
    """Return a number with exactly that many significant digits: `0.6280`, `1.700e-08`, `0`, `nan`."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    return f"{value:#.{digits}g}".removesuffix(".")


def small(value: float) -> str:
    """Return a bound or a threshold shortly: `3e-10`, `1.7e-08`."""
    return f"{value:.2g}"


def figures(first: float, second: float) -> tuple[str, str]:
    """Return two numbers with as many digits as it takes to see that they differ."""
    for digits in range(DIGITS, _ALL_DIGITS + 1):
        pair = number(first, digits), number(second, digits)
        if pair[0] != pair[1] or first == second:
            return pair
    return number(first), number(second)


def in_a_row(words: Sequence[str]) -> str:
    """Words as a part of a sentence: `a, b and c`."""
    *before, last = words
    return f"{', '.join(before)} and {last}" if before else last


HOME = "https://github.com/gradverify/gradverify"
"""Where the project lives."""

NOT_VERIFIED = (Verdict.FAILED, Verdict.INCONCLUSIVE, Verdict.UNCHECKED)
"""Verdicts that are never green, worst first."""


def help_uri(code: str) -> str:
    """Where a code is explained."""
    return f"{HOME}/blob/main/docs/rules/{code}.md"


def in_order(report: Report) -> list[TargetReport]:
    """Targets by where they are."""
    return sorted(report.targets, key=lambda t: (t.target.file, t.target.line, t.target.name))


def mistakes_in_order(report: Report) -> list[Mistake]:
    """Mistakes by where they are; those without a place come first."""
    nowhere = Location("", 0)
    return sorted(report.errors, key=lambda m: (m.location or nowhere, m.message))


def reported(target: TargetReport) -> list[Finding]:
    """The findings that weigh on a target's verdict or warn: no notes, nothing that was expected."""
    return [f for f in target.findings if f.severity is not Severity.NOTE and not f.expected]
