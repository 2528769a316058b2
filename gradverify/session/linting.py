"""One run of the static rules: files in, a `LintReport` out. Nothing is imported, no process is started."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradverify import __version__
from gradverify.errors import UsageError, did_you_mean
from gradverify.lint import Linted, lint_file
from gradverify.model import LintFinding, LintReport, shown_path
from gradverify.session.folders import may_define, python_files
from gradverify.session.outcome import ExitCode
from gradverify.session.selection import Selection


@dataclass(frozen=True)
class LintRequest:
    """What is to be linted."""

    selections: tuple[Selection, ...]
    excluded: Callable[[Path], bool] = lambda _: False
    select: tuple[str, ...] = ()
    """Code prefixes; empty for all."""
    ignore: tuple[str, ...] = ()


def lint(request: LintRequest) -> LintReport:
    """Hold every Function of the selected files against the static rules.

    Raises `UsageError` for a `::Name` that its file does not define. A file that cannot be parsed becomes an
    entry of `LintReport.errors`.
    """
    read = [(names, lint_file(path, shown_path(path)), path) for path, names in _files(request).items()]
    functions = 0
    findings: list[LintFinding] = []
    waived: list[LintFinding] = []
    for names, linted, path in read:
        _require(names, linted, path)
        functions += len(names or linted.functions)
        findings += _wanted(linted.findings, names, request)
        waived += _wanted(linted.waived, names, request)
    errors = tuple(linted.error for _, linted, _ in read if linted.error is not None)
    return LintReport(
        findings=tuple(findings),
        errors=errors,
        files=len(read),
        functions=functions,
        waived=len(waived),
        gradverify_version=__version__,
        exit_code=_exit_code(findings, functions, failed=bool(errors)),
    )


def _wanted(found: Sequence[LintFinding], names: set[str], request: LintRequest) -> Iterator[LintFinding]:
    """The findings about the classes and codes that are asked for."""
    for one in found:
        chosen = not request.select or one.code.startswith(request.select)
        ignored = bool(request.ignore) and one.code.startswith(request.ignore)
        if chosen and not ignored and (not names or one.function in names):
            yield one


def _files(request: LintRequest) -> dict[Path, set[str]]:
    """The files in the order of the TARGETs, each with the classes it is limited to; none for all of them."""
    files: dict[Path, set[str]] = {}
    whole: set[Path] = set()
    for selection in request.selections:
        for path in _of(selection, request):
            names = files.setdefault(path, set())
            if selection.name:
                names.add(selection.name)
            else:
                whole.add(path)
    return {path: set() if path in whole else names for path, names in files.items()}


def _of(selection: Selection, request: LintRequest) -> Iterator[Path]:
    if selection.case:
        raise UsageError(f"lint reads the source alone: it knows no case [{selection.case}]")
    if selection.path.is_dir():
        yield from filter(may_define, python_files(selection.path, request.excluded))
    elif not request.excluded(selection.path):
        yield selection.path


def _require(names: set[str], linted: Linted, path: Path) -> None:
    missing = sorted(names - set(linted.functions)) if linted.error is None else []
    if missing:
        meant = did_you_mean(missing[0], linted.functions)
        raise UsageError(f"{shown_path(path)} defines no Function `{missing[0]}`{meant}")


def _exit_code(findings: Sequence[LintFinding], functions: int, *, failed: bool) -> ExitCode:
    if failed:
        return ExitCode.USAGE
    if findings:
        return ExitCode.FINDINGS
    return ExitCode.OK if functions else ExitCode.NOTHING
