"""Where text leaves the process: streams that are closed or full, colour, and a user's mistakes.

Files and folders that a run writes: refused before the work where they cannot be, or must not be.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import typer

from gradverify import __version__
from gradverify.config import Config, load_config
from gradverify.errors import SpecError, UsageError
from gradverify.model import shown_path
from gradverify.options import Color
from gradverify.report.console import TextStyle, harmless
from gradverify.report.formats import MACHINES, Format, LintFormat
from gradverify.session.outcome import ExitCode, summary_of

if TYPE_CHECKING:
    from gradverify.model import LintReport, Report


ISSUES = "https://github.com/gradverify/gradverify/issues"

INTERRUPTED = "gradverify: interrupted; nothing is left running\n"

HOMES = {Format.JSON: "json_v1"}
"""Modules of `gradverify.report` that are not called as their format is."""

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


def tell(text: str) -> None:
    """Write a message on stderr. It may name files, which may be called anything. Raises as `write`."""
    write(sys.stderr, harmless(text))


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


def configuration(given: Path | None, verbosity: int) -> Config:
    """The configuration; -v says on stderr which file it is. Raises as `load_config` does."""
    config = load_config(given)
    if verbosity > 0 and config.file is not None:
        tell(f"gradverify: configuration: {shown_path(config.file)}\n")
    return config


@contextlib.contextmanager
def reported(
    style: TextStyle, output: Format = Format.TEXT, files: Sequence[tuple[Format, Path]] = ()
) -> Iterator[None]:
    """Turn a user's mistake into sentences and exit code 2, Ctrl-C into one and 130."""
    try:
        yield
    except UsageError as error:
        tell(f"gradverify: {error}\n")
        raise typer.Exit(ExitCode.USAGE) from None
    except SpecError as error:
        if output in MACHINES:
            write(sys.stdout, _rendered(_only_errors(error), style, output))
        else:
            from gradverify.report.text import render_mistakes  # noqa: PLC0415 - loads rich

            write(sys.stderr, render_mistakes(error.problems, style))
        for form, path in files:
            write_file(path, _rendered(_only_errors(error), style_of_file(style), form), "--report")
        raise typer.Exit(ExitCode.USAGE) from None
    except KeyboardInterrupt:
        write(sys.stderr, INTERRUPTED)
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def print_report(
    found: Report, style: TextStyle, output: Format, files: Sequence[tuple[Format, Path]] = ()
) -> None:
    """Print a report on stdout and into files, and gradverify's own failures on stderr."""
    write(sys.stdout, _rendered(found, style, output))
    if output is Format.CONCISE:
        from gradverify.report.text import slowest_lines  # noqa: PLC0415

        write(sys.stderr, "".join(f"{line}\n" for line in slowest_lines(found)))
    write_reports(found, style, files)


def write_reports(found: Report, style: TextStyle, files: Sequence[tuple[Format, Path]]) -> None:
    """Write a report into files, and gradverify's own failures to stderr."""
    for form, path in files:
        write_file(path, _rendered(found, style_of_file(style), form), "--report")
    print_bugs(found.bugs)


def style_of_file(style: TextStyle) -> TextStyle:
    """How text is to look in a file, wherever stdout goes."""
    return TextStyle(None, color=False, unicode=True, verbosity=style.verbosity)


def _rendered(found: Report, style: TextStyle, output: Format) -> str:
    """A report in a format: `render_FORMAT` of the module that has it, loaded when it is asked for."""
    module = import_module(f"gradverify.report.{HOMES.get(output, output)}")
    render = getattr(module, f"render_{output}")
    return str(render(found) if output in MACHINES - {Format.MARKDOWN} else render(found, style))


def lint_text(found: LintReport, style: TextStyle, output: LintFormat) -> str:
    """What `lint` prints in a format."""
    from gradverify.report import lint  # noqa: PLC0415

    match output:
        case LintFormat.JSON:
            return lint.render_lint_json(found)
        case LintFormat.GITHUB:
            return lint.render_lint_github(found)
        case LintFormat.CONCISE:
            return lint.render_lint_concise(found, style)
        case LintFormat.TEXT:
            return lint.render_lint(found, style)


def write_file(path: Path, text: str, option: str) -> None:
    """Write a report into a file: all of it, or the file stays as it was.

    Raises `UsageError` where it cannot be written.
    """
    real = path.resolve()
    beside = real.with_name(f".{real.name[:99]}.{os.getpid()}")
    # A device or a pipe is no file to be replaced, and in a folder of somebody else's none can be added.
    whole = (real.is_file() or not real.exists()) and os.access(real.parent, os.W_OK)
    try:
        (beside if whole else real).write_text(text, "utf-8", "backslashreplace", "\n")
        if whole:
            if real.exists():
                shutil.copymode(real, beside)
            beside.replace(real)
    except OSError as error:
        if whole:
            beside.unlink(missing_ok=True)
        raise UsageError(f"{option}: `{path}` cannot be written: {error.strerror}") from None


def print_bugs(tracebacks: tuple[str, ...]) -> None:
    """Print gradverify's own failures on stderr."""
    if tracebacks:
        tell("\n".join(("", *dict.fromkeys(tracebacks))) + bug_sentence())


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
    from importlib import metadata  # noqa: PLC0415 - with the reader of mails that it needs

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
    from gradverify.model import Report, Settings  # noqa: PLC0415

    return Report(
        Settings(),
        (),
        error.problems,
        gradverify_version=__version__,
        torch_version=_torch_version(),
        exit_code=ExitCode.USAGE,
        summary=summary_of(()),
    )


SOURCES = frozenset({".py", ".pyi", ".ipynb", ".yaml", ".yml", ".toml"})
"""Endings of what is verified, and of what says how."""


def report_files(texts: list[str] | None) -> tuple[tuple[Format, Path], ...]:
    """Read `--report`.

    Raises `UsageError` for what is not FORMAT=PATH, and for a file that cannot be written: before the work.
    """
    files = []
    for text in texts or ():
        name, _, path = text.partition("=")
        if name not in list(Format) or not path:
            raise UsageError(f"--report: `{text}` is not FORMAT=PATH, with a format of {', '.join(Format)}")
        file = Path(path)
        _refuse_source(file, "--report")
        refuse_unwritable(file, "--report")
        files.append((Format(name), file))
    if len({path.resolve() for _, path in files}) < len(files):
        raise UsageError("--report: two reports to one file")
    return tuple(files)


def _refuse_source(file: Path, option: str) -> None:
    """Raise `UsageError` for a file that holds what is verified, or how: no report is called so."""
    if file.suffix in SOURCES:
        raise UsageError(f"{option}: `{file}` is named like a module, a spec or a configuration")


def refuse_unwritable(file: Path, option: str) -> None:
    """Raise `UsageError` for a file that cannot be written: before the work."""
    reason = ""
    if file.is_dir():
        reason = "it is a folder"
    elif not file.parent.is_dir():
        reason = f"there is no folder `{file.parent}`"
    elif not os.access(file if file.exists() else file.parent, os.W_OK):
        reason = "permission denied"
    if reason:
        raise UsageError(f"{option}: `{file}` cannot be written: {reason}")
