"""Where text leaves the process: streams that are closed or full, colour, and a user's mistakes."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import TextIO

import typer

from gradverify import __version__
from gradverify.cli.options import MACHINES, Color, Format, LintFormat
from gradverify.config import Config, load_config
from gradverify.errors import SpecError, UsageError
from gradverify.model import LintReport, Report, Settings, shown_path
from gradverify.report import (
    TextStyle,
    render_concise,
    render_github,
    render_html,
    render_json,
    render_junit,
    render_lint,
    render_lint_concise,
    render_lint_github,
    render_lint_json,
    render_markdown,
    render_mistakes,
    render_sarif,
    render_text,
    slowest_lines,
)
from gradverify.session.outcome import ExitCode, summary_of
from gradverify.session.progress import on_terminal
from gradverify.session.request import Progress

ISSUES = "https://github.com/gradverify/gradverify/issues"

NARROWEST = 40
"""Columns; what is narrower is not read but looked at."""


def style_for(color: Color, verbosity: int) -> TextStyle:
    """How text is to look on stdout: the option goes before the environment, that before the terminal."""
    terminal = sys.stdout.isatty()
    if color is Color.AUTO:
        colored = not os.environ.get("NO_COLOR") and (
            bool(os.environ.get("FORCE_COLOR")) or (terminal and os.environ.get("TERM") != "dumb")
        )
    else:
        colored = color is Color.ALWAYS
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    return TextStyle(_terminal_width() if terminal else None, colored, unicode, verbosity)


def write(stream: TextIO, text: str) -> None:
    """Write text whatever the stream can carry. A reader who has gone has seen enough: that is no error.

    Raises `UsageError` where it cannot be written, such as on a full disk.
    """
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        _discard(stream)
    except OSError as error:
        _discard(stream)
        raise UsageError(f"the report cannot be written: {error.strerror}") from None


def _discard(stream: TextIO) -> None:
    """Let the rest go nowhere; Python would complain about it once more when it closes the stream."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def open_standard_streams() -> None:
    """Give a process that was started with closed streams some: a pipe to a worker must not become stdout."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123


@contextlib.contextmanager
def told(
    style: TextStyle, output: Format = Format.TEXT, files: Sequence[tuple[Format, Path]] = ()
) -> Iterator[None]:
    """Turn a user's mistake into sentences and exit code 2, Ctrl-C into one and 130."""
    try:
        yield
    except UsageError as error:
        write(sys.stderr, f"gradverify: {error}\n")
        raise typer.Exit(ExitCode.USAGE) from None
    except SpecError as error:
        if output in MACHINES:
            write(sys.stdout, _rendered(_only_errors(error), style, output))
        else:
            write(sys.stderr, render_mistakes(error.problems, style))
        for form, path in files:
            write_file(path, _rendered(_only_errors(error), style_of_file(style), form), "--report")
        raise typer.Exit(ExitCode.USAGE) from None
    except KeyboardInterrupt:
        write(sys.stderr, "gradverify: interrupted; nothing is left running\n")
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def configuration(given: Path | None, verbosity: int) -> Config:
    """The configuration; -v says on stderr which file it is. Raises as `load_config` does."""
    config = load_config(given)
    if verbosity > 0 and config.file is not None:
        write(sys.stderr, f"gradverify: configuration: {shown_path(config.file)}\n")
    return config


@contextlib.contextmanager
def progress() -> Iterator[Progress]:
    """Progress on stderr, where that is a terminal."""
    with on_terminal(sys.stderr) as shown:
        yield shown


def print_report(
    report: Report, style: TextStyle, output: Format, files: Sequence[tuple[Format, Path]] = ()
) -> None:
    """Print a report on stdout and into files, and gradverify's own failures on stderr."""
    write(sys.stdout, _rendered(report, style, output))
    if output is Format.CONCISE:
        write(sys.stderr, "".join(f"{line}\n" for line in slowest_lines(report)))
    for form, path in files:
        write_file(path, _rendered(report, style_of_file(style), form), "--report")
    print_bugs(report.bugs)


def style_of_file(style: TextStyle) -> TextStyle:
    """How text is to look in a file, wherever stdout goes."""
    return TextStyle(None, color=False, unicode=True, verbosity=style.verbosity)


def _rendered(report: Report, style: TextStyle, output: Format) -> str:
    for_people = {
        Format.TEXT: render_text,
        Format.CONCISE: render_concise,
        Format.MARKDOWN: render_markdown,
    }
    for_machines = {
        Format.JSON: render_json,
        Format.JUNIT: render_junit,
        Format.SARIF: render_sarif,
        Format.GITHUB: render_github,
        Format.HTML: render_html,
    }
    if output in for_people:
        return for_people[output](report, style)
    return for_machines[output](report)


def lint_text(report: LintReport, style: TextStyle, output: LintFormat) -> str:
    """What `lint` prints in a format."""
    match output:
        case LintFormat.TEXT:
            return render_lint(report, style)
        case LintFormat.CONCISE:
            return render_lint_concise(report, style)
        case LintFormat.JSON:
            return render_lint_json(report)
        case LintFormat.GITHUB:
            return render_lint_github(report)


def write_file(path: Path, text: str, option: str) -> None:
    """Write a report into a file.

    Raises `UsageError` where it cannot be written.
    """
    try:
        path.write_text(text, "utf-8", "backslashreplace", "\n")
    except OSError as error:
        raise UsageError(f"{option}: `{path}` cannot be written: {error.strerror}") from None


def print_bugs(tracebacks: tuple[str, ...]) -> None:
    """Print gradverify's own failures on stderr."""
    if tracebacks:
        write(sys.stderr, "\n".join(("", *dict.fromkeys(tracebacks))) + bug_sentence())


def bug_sentence() -> str:
    """What to say under a traceback of ours."""
    return (
        f"\nThis is a bug in gradverify, not in your code. Please report it with the text above at {ISSUES}\n"
        f"({versions()})\n"
    )


def versions() -> str:
    """The versions that a report needs. Torch's comes from its metadata: importing it takes seconds."""
    return f"gradverify {__version__}, torch {_torch_version()}, Python {platform.python_version()}"


def _torch_version() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _terminal_width() -> int:
    try:
        return max(NARROWEST, os.get_terminal_size(sys.stdout.fileno()).columns)
    except OSError:
        return 80


def _only_errors(error: SpecError) -> Report:
    return Report(
        Settings(), (), error.problems, (), __version__, _torch_version(), ExitCode.USAGE, summary_of(())
    )
