"""`--baseline FILE`: findings that are known, each with a reason and the day from which it fails again."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradverify.errors import ConfigError, UsageError, did_you_mean
from gradverify.model import Effort, Finding, Outcome, Severity, TargetReport, Verdict, shown_path
from gradverify.rules import RULES, nearest_code, rule
from gradverify.session.outcome import fails
from gradverify.session.selection import split_target
from gradverify.toml_file import read_toml

if TYPE_CHECKING:
    from gradverify.session.modules import Module
    from gradverify.session.request import Request

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
    file = read_toml(path, "baseline")
    entries = file.data.get("known", [])
    if not (isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)):
        raise ConfigError([file.mistake("`known` is not a list of tables: write [[known]]", 1)])
    lines = enumerate(file.text.splitlines(), start=1)
    headers = [number for number, line in lines if re.match(r"\s*\[\[\s*known\s*\]\]", line)]
    starts = headers if len(headers) == len(entries) else [0] * len(entries)
    mistakes = [
        file.mistake(f"unknown key `{key}`: it has [[known]] alone", file.line_of(key))
        for key in file.data
        if key != "known"
    ]
    for entry, start in zip(entries, starts, strict=True):
        mistakes += [file.mistake(what, file.line_of(key, start)) for key, what in _complaints(entry, path)]
    if mistakes:
        raise ConfigError(mistakes)
    return tuple(_known(entry, path, start) for entry, start in zip(entries, starts, strict=True))


def _known(entry: dict[str, Any], path: Path, line: int) -> Known:
    file, name, _ = split_target(entry["target"])
    place = f"{shown_path(path)}:{line or 1}"
    optional = {"input": entry["input"]} if "input" in entry else {}
    return Known(_module(file, path), name, entry["code"], entry["reason"], entry["until"], place, **optional)


def _complaints(entry: dict[str, Any], path: Path) -> Iterator[tuple[str, str]]:
    for key in entry:
        if key not in KEYS:
            yield key, f"unknown key `{key}`{did_you_mean(key, KEYS)}"
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


def _quoted(text: str) -> str:
    """A basic string of TOML."""
    return '"' + "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text) + '"'


def about_the_baseline(
    request: Request, modules: Sequence[Module], reports: Sequence[TargetReport]
) -> Iterator[str]:
    """Sentences on the entries of a baseline, then the entries that new findings would need."""
    if request.baseline is None:
        return
    paths = {module.shown_path: module.path for module in modules}
    by_target = {(paths[r.target.file], r.target.name): r for r in reports if r.target.file in paths}
    for known in request.known:
        report = by_target.get((known.module, known.name))
        if report is not None and request.today >= known.until:
            yield f"{known.said} is no longer expected: the entry ended on {known.until}"
        elif report is not None and _is_fixed(known, report, request):
            yield f"{known.said} no longer occurs: remove the entry"
        elif _is_gone(known, modules):
            yield f"{known.said} is in the baseline, but there is no such target: remove the entry"
    entries = list(dict.fromkeys(_entries(request, by_target, request.baseline)))
    if entries:
        file = shown_path(request.baseline)
        yield f"to make what is new known, give a reason and add to {file}:\n\n" + "\n".join(entries)


def _entries(
    request: Request, by_target: dict[tuple[Path, str], TargetReport], baseline: Path
) -> Iterator[str]:
    for (module, name), report in by_target.items():
        for finding in report.findings:
            if fails(finding, strict=request.settings.strict) or (
                finding.code == "GV109" and not finding.expected
            ):
                yield entry_of(module, name, finding, baseline, request.today)


def _is_fixed(known: Known, report: TargetReport, request: Request) -> bool:
    """Whether all of a target was judged, and the finding is not there."""
    settings = request.settings
    narrowed = any(s.case for s in request.selections) or settings.effort is Effort.QUICK
    if (
        narrowed
        or not settings.selects(known.code)
        or any(known.code.startswith(p) for p, _ in report.ignored)
    ):
        return False
    judged = dict(report.checks).get(rule(known.code).family.value) is not Outcome.NOT_RUN
    done = report.status in {Verdict.PASSED, Verdict.XFAILED} and report.cases_verified == report.cases
    return judged and done and not any(known.covers(f) for f in report.findings)


def _is_gone(known: Known, modules: Sequence[Module]) -> bool:
    return any(
        m.path == known.module and m.error is None and all(t.name != known.name for t in m.targets)
        for m in modules
    )
