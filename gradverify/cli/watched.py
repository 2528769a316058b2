"""`check --watch`: report, wait for a change, run the whole request again in workers of one warm template."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from types import ModuleType

import typer

from gradverify.cli.screen import print_report, reported, write, write_reports
from gradverify.errors import InterruptedRunError, UsageError
from gradverify.model import Report, Settings, Verdict, shown_path
from gradverify.report.console import TextStyle, harmless
from gradverify.report.formats import MACHINES, Format
from gradverify.report.text import render_scrolled
from gradverify.report.words import clean, listed, plural
from gradverify.session.outcome import ExitCode
from gradverify.session.request import Request
from gradverify.session.template import Template, can_fork, template_for
from gradverify.session.worker import Worker

WATCHED = frozenset(
    ".c .cc .cfg .cpp .cu .cuh .h .hpp .pth .py .pyd .pyi .pyx .so .toml .yaml .yml".split()  # noqa: SIM905
)
"""Endings of files that a verdict may depend on. Others, as reports and logs, are written by runs."""

LOOK_MS = 250
"""Between two looks at whether anybody reads the output any more."""

NAMED = 3
"""Files that are named; of more, only the count is reported."""

_CLEAR = "\x1b[H\x1b[2J"
"""The cursor goes home, the screen is emptied; what scrolled off it stays."""


@dataclass(frozen=True)
class Printing:
    """How reports are printed."""

    style: Callable[[], TextStyle]
    """Asked before each: a terminal may be made wider."""
    output: Format
    files: Sequence[tuple[Format, Path]]
    terminal: bool = field(default_factory=lambda: sys.stdout.isatty() and os.environ.get("TERM") != "dumb")

    def show(self, report: Report, *, first: bool) -> None:
        """Print one report after another."""
        style = self.style()
        if not first:
            write(sys.stdout, _CLEAR if self.terminal else "\n")
        if self.terminal and self.output is Format.TEXT:
            write(sys.stdout, render_scrolled(report, style))
            write_reports(report, style, self.files)
        else:
            print_report(report, style, self.output, self.files)

    def say(self, *lines: str) -> None:
        """Write messages to the terminal, or beside the reports."""
        write(sys.stdout if self.terminal else sys.stderr, harmless("".join(f"{line}\n" for line in lines)))


@dataclass
class _Warm:
    """The template process that the workers of every run are forked from."""

    template: Template | None = None
    is_preloaded: bool = False

    def start_for(self, settings: Settings) -> Callable[[Callable[[], float]], Worker] | None:
        """How a run with these settings starts its workers; None where nothing can be forked."""
        if not can_fork(settings):
            return None
        if self.template is None:
            self.template = template_for(settings)
        return partial(Worker, template=self.template)

    def preload(self) -> None:
        """Import all that verifying may load, once the first report is out."""
        if self.template is not None and not self.is_preloaded:
            self.template.preload()
            self.is_preloaded = True

    def close(self) -> None:
        if self.template is not None:
            self.template.close()


def watch_and_check(
    asked: Callable[[], Request], checked: Callable[[Request], Report], printing: Printing
) -> ExitCode:
    """Verify, wait until a source is saved, verify again, until Ctrl-C; the exit code of the last run.

    `asked` reads what is asked for anew, which a configuration may change. Raises `UsageError` where
    `watchfiles` is missing and for options that make no sense here; later mistakes are printed, and waited
    for.
    """
    watchfiles = _watchfiles()
    first = asked()
    _refuse_with_watch(first, printing.output)
    warm, code, before = _Warm(), ExitCode.INTERRUPTED, dict[str, Verdict]()
    try:
        for number, changed in enumerate(_changes(watchfiles, first)):
            if number:
                printing.say(f"checking again: {_names(changed)}")
            since = time.monotonic()
            try:
                with reported(printing.style(), printing.output, printing.files):
                    request = first if not number else asked()
                    report = checked(replace(request, started=warm.start_for(request.settings)))
                    printing.show(report, first=not number)
                    code = ExitCode(report.exit_code)
                    printing.say("", *_turned(before, report, printing.style()))
                    before = {one.target.id: one.status for one in report.targets}
            except typer.Exit as refused:
                code = ExitCode(refused.exit_code)
                if code is ExitCode.INTERRUPTED:
                    break
            took = time.monotonic() - since
            printing.say(f"{_time_of_day()}  checked in {took:.1f} s; waiting for a change (Ctrl-C: stop)")
            warm.preload()
    except InterruptedRunError as interrupted:
        printing.show(interrupted.report, first=False)
        code = ExitCode.INTERRUPTED
    except KeyboardInterrupt:
        printing.say("")
    finally:
        warm.close()
    return code


def _watchfiles() -> ModuleType:
    try:
        import watchfiles  # noqa: PLC0415 - an extra
    except ImportError:
        raise UsageError(
            "--watch needs the package watchfiles: pip install watchfiles, or gradverify[watch]"
        ) from None
    return watchfiles


def _refuse_with_watch(request: Request, output: Format) -> None:
    """Refuse what makes no sense for runs that follow each other. Raises `UsageError`."""
    if request.in_process:
        raise UsageError("--in-process cannot be used with --watch: a module is imported only once there")
    if output in MACHINES:
        raise UsageError(
            f"--watch prints report after report: use --report {output}=PATH, which is written anew each time"
        )


def _changes(watchfiles: ModuleType, request: Request) -> Iterator[list[Path]]:
    """Yield an empty list at once, then the saved sources of each change, until the output is closed.

    What is saved during a run comes after it.
    """
    ignored = watchfiles.DefaultFilter()

    def is_source(change: object, path: str) -> bool:
        return Path(path).suffix in WATCHED and ignored(change, path) and not request.excluded(Path(path))

    watching = watchfiles.watch(
        *_folders(request), watch_filter=is_source, rust_timeout=LOOK_MS, yield_on_timeout=True
    )
    next(watching)  # from here on changes are seen
    yield []
    for changes in watching:
        if not sys.stdout.isatty() and _is_closed(sys.stdout.fileno()):
            return
        if changes:
            yield sorted({Path(path) for _, path in changes})


def _folders(request: Request) -> Iterable[Path]:
    """The current folder, and those of what is checked outside it."""
    here = Path.cwd()
    named = [s.path if s.path.is_dir() else s.path.parent for s in request.selections]
    folders = (folder.resolve() for folder in (*named, *(spec.parent for spec in request.specs)))
    return dict.fromkeys([here, *(f for f in folders if not f.is_relative_to(here) and f.is_dir())])


def _turned(before: dict[str, Verdict], report: Report, style: TextStyle) -> list[str]:
    """Targets whose verdict is another than in the last run."""
    arrow = "→" if style.unicode else "->"
    return [
        f"{clean(one.target.id)}: {was} {arrow} {one.status}"
        for one in report.targets
        if (was := before.get(one.target.id, one.status)) != one.status
    ]


def _names(paths: Sequence[Path]) -> str:
    if len(paths) > NAMED:
        return f"{plural(len(paths), 'file')} changed"
    return f"{listed([clean(shown_path(path)) for path in paths])} changed"


def _is_closed(stream: int) -> bool:
    """Whether whoever read a pipe has gone."""
    poll = select.poll()
    poll.register(stream, select.POLLERR)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _time_of_day() -> str:
    return datetime.now().astimezone().strftime("%H:%M:%S")
