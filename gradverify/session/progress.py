"""Progress on stderr: only on a terminal, only after about a second, gone when the report comes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.status import Status
from rich.text import Text

from gradverify.session.request import Progress, Silent

QUIET_SECONDS = 1.0
"""Runs shorter than this show no progress at all."""


@contextmanager
def on_terminal(stream: TextIO) -> Iterator[Progress]:
    """Progress for a terminal; silence for anything else."""
    if not stream.isatty():
        yield Silent()
        return
    line = _Line(Console(file=stream, markup=False, highlight=False, emoji=False))
    try:
        yield line
    finally:
        line.stop()


class _Line:
    """One line that says what is being done. A timer shows it: a hanging import sends no event that could."""

    def __init__(self, console: Console) -> None:
        self._status = Status("", console=console)
        self._lock = threading.Lock()
        self._over = False
        self._timer = threading.Timer(QUIET_SECONDS, self._start)
        self._timer.daemon = True
        self._timer.start()

    def importing(self, file: str) -> None:
        self._status.update(_visible(f"importing {file}"))

    def verifying(self, target: str, number: int, total: int, case_id: str) -> None:
        case = f" [{case_id}]" if case_id and case_id != "base" else ""
        self._status.update(_visible(f"{number} of {total}  {target}{case}"))

    def stop(self) -> None:
        self._timer.cancel()
        with self._lock:
            self._over = True
            self._status.stop()

    def _start(self) -> None:
        with self._lock:
            if not self._over:
                self._status.start()


def _visible(text: str) -> Text:
    """One line at most, whatever a file is called."""
    shown = "".join(char if char.isprintable() else "?" for char in text)
    return Text(shown, no_wrap=True, overflow="ellipsis")
