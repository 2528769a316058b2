"""`--baseline FILE`: findings that are known, each with a reason and the day from which it fails again."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

from gradverify.errors import ConfigError, UsageError
from gradverify.model import Finding, Location, Mistake, Severity, shown_path
from gradverify.rules import RULES, nearest_code
from gradverify.session.selection import split_target

KEYS = ("target", "code", "reason", "until", "input")
USUAL_TERM = timedelta(days=90)
"""The term of an entry that is offered: a release or so, after which somebody looks at it again."""
_OPTIONAL = frozenset({"input"})
_CODES = frozenset(rule.code for rule in RULES)


@dataclass(frozen=True)
class Known:
    """One finding that is known: an entry `[[known]]` of a baseline."""

    module: Path
    """The module's file, absolute."""
    name: str
    """The target's name."""
    code: str
    reason: str
    until: date
    """The day from which on it fails again."""
    place: str
    """`FILE:line` of the entry."""
    input: str = ""
    """The input it is limited to; empty for any."""

    def covers(self, finding: Finding) -> bool:
        """Whether a finding of its target is this one."""
        if finding.code != self.code or finding.severity is Severity.NOTE:
            return False
        return not self.input or finding.input == self.input

    @property
    def said(self) -> str:
        """How sentences name it: `baseline.toml:3: GV101 of Linear`."""
        return f"{self.place}: {self.code} of {self.name}"


def mark_known(findings: Sequence[Finding], known: Sequence[Known], today: date) -> list[Finding]:
    """Mark as expected what an entry covers that has not ended."""
    valid = [k for k in known if today < k.until]
    return [replace(f, expected=True) if any(k.covers(f) for k in valid) else f for f in findings]


def entry_of(module: Path, name: str, finding: Finding, baseline: Path, today: date) -> str:
    """An entry for a finding, but for its reason: without one it is refused, and a person has to give it."""
    file = Path(os.path.relpath(module.absolute(), baseline.absolute().parent)).as_posix()
    lines = ["[[known]]", f"target = {_quoted(f'{file}::{name}')}", f'code = "{finding.code}"']
    lines += [f"input = {_quoted(finding.input)}"] if finding.input else []
    return "\n".join([*lines, 'reason = ""', f"until = {today + USUAL_TERM}", ""])


def read_baseline(path: Path) -> tuple[Known, ...]:
    """Read a baseline.

    Raises `ConfigError` with every mistake and its line, `UsageError` where it cannot be read.
    """
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise UsageError(f"the baseline `{path}` cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"the baseline `{path}` is not UTF-8") from None
    document = _parsed(path, text)
    entries = document.get("known", [])
    if not (isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)):
        raise ConfigError([_mistake(path, text, 1, "`known` is not a list of tables: write [[known]]")])
    headers = [number for number, line in _numbered(text) if re.match(r"\s*\[\[\s*known\s*\]\]", line)]
    starts = headers if len(headers) == len(entries) else [0] * len(entries)
    mistakes = [
        _mistake(path, text, _line_of_key(text, key, 0), f"unknown key `{key}`: it has [[known]] alone")
        for key in document
        if key != "known"
    ]
    for entry, start in zip(entries, starts, strict=True):
        mistakes += [
            _mistake(path, text, _line_of_key(text, key, start), message)
            for key, message in _complaints(entry, path)
        ]
    if mistakes:
        raise ConfigError(mistakes)
    return tuple(_known(entry, path, start) for entry, start in zip(entries, starts, strict=True))


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r" \(at line (\d+), column (\d+)\)$", str(error))
        message = str(error)[: place.start()] if place else str(error)
        line = int(place[1]) if place else len(text.splitlines()) or 1
        raise ConfigError([_mistake(path, text, line, f"is not TOML: {message}")]) from None


def _known(entry: dict[str, Any], path: Path, line: int) -> Known:
    file, name, _ = split_target(entry["target"])
    place = f"{shown_path(path)}:{line or 1}"
    optional = {"input": entry["input"]} if "input" in entry else {}
    return Known(_module(file, path), name, entry["code"], entry["reason"], entry["until"], place, **optional)


def _complaints(entry: dict[str, Any], path: Path) -> Iterator[tuple[str, str]]:
    for key in entry:
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, 1, 0.5)
            yield key, f"unknown key `{key}`" + (f"; did you mean `{near[0]}`?" if near else "")
    for key in KEYS:
        if key not in entry and key not in _OPTIONAL:
            yield "", f"`{key}` is missing"
        elif key != "until" and key in entry and not (isinstance(entry[key], str) and entry[key].strip()):
            yield key, f"`{key}` must be a text that is not empty"
    if isinstance(entry.get("code"), str) and entry["code"] not in _CODES:
        near_code = nearest_code(entry["code"])
        meant = f"; did you mean `{near_code}`?" if near_code else " (see `gradverify rules`)"
        yield "code", f"there is no code `{entry['code']}`{meant}"
    until = entry.get("until", date.min)
    if not isinstance(until, date) or isinstance(until, datetime):
        yield "until", "`until` must be a date without quotes, as 2030-12-31"
    if isinstance(entry.get("target"), str):
        yield from _about_the_target(entry["target"], path)


def _about_the_target(target: str, path: Path) -> Iterator[tuple[str, str]]:
    try:
        file, name, case = split_target(target)
    except UsageError as error:
        yield "target", str(error)
        return
    if not name or case:
        yield "target", f"`{target}` is not module.py::Name"
    elif not _module(file, path).is_file():
        yield "target", f"there is no file `{file}` beside this one (paths are relative to the baseline)"


def _module(file: str, path: Path) -> Path:
    return Path(os.path.normpath(path.absolute().parent / file))


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    return enumerate(text.splitlines(), start=1)


def _line_of_key(text: str, key: str, start: int) -> int:
    """The line of a key from a header on; the header's where the key is not written in the plain way."""
    for number, line in _numbered(text):
        if number > start and start and line.lstrip().startswith("["):
            break
        if number > start and key and re.match(rf"""\s*\[*\s*["']?{re.escape(key)}["']?\s*[\]=.]""", line):
            return number
    return start or 1


def _mistake(path: Path, text: str, line: int, message: str) -> Mistake:
    lines = text.splitlines()
    source = lines[line - 1] if 0 < line <= len(lines) else ""
    return Mistake(message, Location(shown_path(path), line), source, kind="config")


def _quoted(text: str) -> str:
    """A basic string of TOML."""
    return '"' + "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text) + '"'
