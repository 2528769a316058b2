"""One file through every rule: source in, findings out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from gradverify.lint.alarm import Alarm, Rule
from gradverify.lint.rules import RULES
from gradverify.model import LintFinding, Location, Mistake
from gradverify.rules import rule
from gradverify.source import Function, Place, functions_of, module_of

_WORTH_PARSING = re.compile(rb"Function|backward")
"""What the source of every Function holds."""

_NOQA = re.compile(r"#\s*noqa(?P<codes>\s*:\s*[A-Z]+\d+(?:[\s,]+[A-Z]+\d+)*)?", re.IGNORECASE)
"""`# noqa` and `# noqa: GV803` on the line of a finding, as other linters read them."""


@dataclass(frozen=True)
class Linted:
    """What the rules say of one file."""

    functions: tuple[str, ...] = ()
    """The classes that were looked at."""
    findings: tuple[LintFinding, ...] = ()
    waived: tuple[LintFinding, ...] = ()
    """Findings with a `# noqa` on their line."""
    error: Mistake | None = None
    """Why it cannot be read as Python."""


def lint_file(path: Path, shown_path: str, rules: Mapping[str, Rule] = RULES) -> Linted:
    """Read a file and hold its Functions against rules. Nothing is imported or run.

    A file that cannot be read or parsed is reported in `Linted.error`, not raised.
    """
    try:
        source = path.read_bytes()
    except OSError as error:
        return Linted(
            error=Mistake(f"cannot be read: {error.strerror}", Location(shown_path, 1), kind="import")
        )
    return lint_source(source, shown_path, rules)


def lint_source(source: bytes, shown_path: str, rules: Mapping[str, Rule] = RULES) -> Linted:
    """Hold the Functions of a module's source against rules, given by their codes."""
    error = module_of(source).error
    try:
        if error is None:
            return _linted(source, shown_path, rules) if _WORTH_PARSING.search(source) else Linted()
    except RecursionError as too_deep:
        error = too_deep
    if isinstance(error, SyntaxError):
        return Linted(error=Mistake.of_syntax(error, shown_path, "parsed"))
    why = str(error) or type(error).__name__
    return Linted(error=Mistake(f"is not readable as Python: {why}", Location(shown_path, 1), kind="import"))


def _lines(source: bytes) -> list[str]:
    """The lines as `ast` counts them: a form feed or a line separator ends none."""
    return source.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").replace("\r\n", "\n").split("\n")


def _linted(source: bytes, shown_path: str, rules: Mapping[str, Rule]) -> Linted:
    functions, lines = functions_of(source), _lines(source)
    found: dict[tuple[Location, str], LintFinding] = {}
    # A method's own class before those that inherit it.
    for function, (code, check) in product(functions, rules.items()):
        for alarm in check(function):
            finding = _finding(function, code, alarm, lines, shown_path)
            found.setdefault((finding.location, code), finding)
    findings = [found[key] for key in sorted(found)]
    waived = tuple(f for f in findings if is_suppressed(f.source_line, f.code))
    kept = tuple(f for f in findings if f not in waived)
    return Linted(tuple(f.name for f in functions), kept, waived)


def _finding(
    function: Function, code: str, alarm: Alarm, lines: Sequence[str], shown_path: str
) -> LintFinding:
    line, start, end = _shown(alarm.place, lines)
    text = lines[line - 1] if line <= len(lines) else ""
    severity, place = rule(code).severity, Location(shown_path, line, start + 1)
    said = (alarm.message, alarm.hint, text.rstrip())
    return LintFinding(code, severity, place, function.name, *said, max(1, end - start))


def _shown(place: Place, lines: Sequence[str]) -> tuple[int, int, int]:
    """Line, first and last column in characters; of a definition the name, of several lines the first."""
    text = lines[place.line - 1] if place.line <= len(lines) else ""
    start = _characters(text, place.start)
    if place.name:
        start = max(text.find(place.name, start), 0)
        return place.line, start, start + len(place.name)
    return (
        place.line,
        start,
        _characters(text, place.end) if place.line == place.last_line else len(text.rstrip()),
    )


def _characters(text: str, offset: int) -> int:
    """A column of `ast`, which counts bytes of UTF-8, in characters."""
    return len(text.encode("utf-8", "replace")[:offset].decode("utf-8", "replace"))


def is_suppressed(line: str, code: str) -> bool:
    """Whether a source line waives a code: by name, or everything by a bare `# noqa`."""
    waived = (match["codes"] for match in _NOQA.finditer(line))
    return any(codes is None or code in re.split(r"[\s,:]+", codes.upper()) for codes in waived)
