"""`check --watch`: the loop around the rounds, and what a terminal or a pipe shows of them."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from gradverify.cli.formats import MACHINES, Format
from gradverify.cli.screen import print_report, write, write_reports
from gradverify.config import FILE
from gradverify.errors import UsageError
from gradverify.model import Report, shown_path
from gradverify.report.console import TextStyle, harmless
from gradverify.report.text import render_scrolled
from gradverify.report.words import clean, listed, plural
from gradverify.session.outcome import ExitCode
from gradverify.session.progress import on_terminal
from gradverify.session.request import Request
from gradverify.session.watch.dependencies import Look, OvertakenError, at_rest, differing
from gradverify.session.watch.rounds import Round, Watch

_CLEAR = "\x1b[H\x1b[2J"
"""The cursor goes home, the screen is emptied; what scrolled off it stays."""
_SAME_LINE = "\r\x1b[2K"
_NAMED = 3
"""Files that are named; of more, only the count is reported."""


class ReaderGoneError(Exception):
    """The reader of the output has gone."""


@dataclass(frozen=True)
class Printing:
    """How reports are printed."""

    style: Callable[[], TextStyle]
    """Asked before each: a terminal may be made wider."""
    output: Format
    files: Sequence[tuple[Format, Path]]


def refuse_with_watch(request: Request, output: Format) -> None:
    """Refuse what makes no sense for runs that follow each other. Raises `UsageError`."""
    refused = {
        "--in-process": request.in_process,
        "--lf": request.last_failed,
        "--changed": request.changed_since is not None,
        "--shard": request.shard != Request.shard,
        request.stopped_by: request.stop_after is not None,
    }
    for option, given in refused.items():
        if given:
            raise UsageError(f"{option} cannot be used with --watch, which verifies what was saved")
    if output in MACHINES:
        raise UsageError(
            f"--watch prints report after report: use --report {output}=PATH, which is written anew each time"
        )


def watch_and_check(asked: Callable[[], Request], config: Path | None, printing: Printing) -> ExitCode:
    """Verify, wait until something is saved, verify again, until Ctrl-C; the exit code of the last round.

    Raises `UsageError` for options that make no sense here. Other mistakes are printed, and waited for.
    """
    refuse_with_watch(asked(), printing.output)
    terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    screen = _Screen(printing, terminal=terminal)
    code = ExitCode.INTERRUPTED
    with Watch(time.monotonic, _time_of_day, _configurations(config)) as watched:
        try:
            while True:
                started = time.monotonic()
                try:
                    with on_terminal(sys.stderr) as shown:
                        done = watched.round(asked, shown)
                except OvertakenError:
                    pass
                else:
                    code = ExitCode(done.report.exit_code)
                    screen.show(done, time.monotonic() - started)
                before = watched.seen
                now = at_rest(watched.look, before, screen.wait)
                if now is None:
                    watched.forget()
                screen.saved(before, now)
        except (KeyboardInterrupt, ReaderGoneError):
            screen.leave()
    return code


class _Screen:
    def __init__(self, printing: Printing, *, terminal: bool) -> None:
        self._printing, self._terminal = printing, terminal
        self._messages = sys.stdout if terminal else sys.stderr
        self._last: Report | None = None
        self._keys = sys.stdin is not None and sys.stdin.isatty() and terminal

    def show(self, done: Round, seconds: float) -> None:
        """Print a round; where it is as the last one was, only that it is."""
        plain = replace(done.report, targets=tuple(replace(t, as_of="") for t in done.report.targets))
        if done.again or plain != self._last:
            self._print(done.report, first=self._last is None)
            self._last = plain
            self._say(_reported(done, seconds, self._printing.style()))
            self._wait_for_more()
        elif self._terminal:
            self._wait_for_more(f"{_time_of_day()}  every verdict stands; ")

    def _print(self, report: Report, *, first: bool) -> None:
        style = self._printing.style()
        if not first:
            write(sys.stdout, _CLEAR if self._terminal else "\n")
        if self._terminal and self._printing.output is Format.TEXT:
            write(sys.stdout, render_scrolled(report, style))
            write_reports(report, style, self._printing.files)
        else:
            print_report(report, style, self._printing.output, self._printing.files)

    def _wait_for_more(self, before: str = "") -> None:
        if self._terminal:
            keys = "Enter: all again, " if self._keys else ""
            write(self._messages, f"{_SAME_LINE}{before}waiting for a change ({keys}Ctrl-C: stop)")

    def saved(self, before: Look, now: Look | None) -> None:
        """Say what was saved, and that it is being verified."""
        what = "everything" if now is None else _names(differing(before, now))
        if self._terminal and what:
            write(self._messages, f"{_SAME_LINE}checking: {what}")

    def leave(self) -> None:
        """Leave the terminal at the beginning of a line."""
        if self._terminal:
            write(self._messages, "\n")

    def wait(self, seconds: float) -> bool:
        """Wait; True where somebody asks for everything to be verified again.

        Raises `ReaderGoneError`.
        """
        if not self._terminal and _is_closed(sys.stdout.fileno()):
            raise ReaderGoneError
        if not self._keys or os.tcgetpgrp(sys.stdin.fileno()) != os.getpgrp():
            time.sleep(seconds)
            return False
        if not select.select([sys.stdin], [], [], seconds)[0]:
            return False
        typed = os.read(sys.stdin.fileno(), 1024)
        self._keys = bool(typed)
        return b"\n" in typed

    def _say(self, lines: Sequence[str]) -> None:
        write(self._messages, harmless("".join(f"{line}\n" for line in ("", *lines))))


def _reported(done: Round, seconds: float, style: TextStyle) -> list[str]:
    arrow = "→" if style.unicode else "->"
    lines = [f"{clean(name)}: {before} {arrow} {now}" for name, before, now in done.turned]
    count = len(done.report.targets)
    checked = f"{len(done.again)} of {plural(count, 'target')}" if done.again or count else "nothing"
    return [*lines, f"{_time_of_day()}  checked {checked} in {seconds:.1f} s"]


def _names(paths: Sequence[Path]) -> str:
    if len(paths) > _NAMED:
        return plural(len(paths), "file")
    return listed([clean(shown_path(path)) for path in paths])


def _configurations(given: Path | None) -> frozenset[Path]:
    """The files that the configuration is, or may come to be, read from."""
    here = Path.cwd()
    return frozenset([given.absolute()] if given else [folder / FILE for folder in (here, *here.parents)])


def _is_closed(stream: int) -> bool:
    """Whether whoever read a pipe has gone."""
    poll = select.poll()
    poll.register(stream, select.POLLERR)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _time_of_day() -> str:
    return datetime.now().astimezone().strftime("%H:%M:%S")
