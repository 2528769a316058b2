"""Progress on stderr: only on a terminal, only after about a second, gone when the report comes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.status import Status

from gradverify.session.request import Progress, Silent

QUIET_SECONDS = 1.0
"""Runs shorter than this show no progress at all."""


@contextmanager
def on_terminal(stream: TextIO) -> Iterator[Progress]:
    """Progress for a terminal; silence for anything else."""
    if not stream.isatty():
        yield Silent()
        return
    console = Console(file=stream, markup=False, highlight=False, emoji=False)
    line = _Line(console)
    try:
        yield line
    finally:
        line.stop()


class _Line:
    """One line that says what is being done."""

    def __init__(self, console: Console) -> None:
        self._status = Status("", console=console)
        self._since = time.monotonic()
        self._shown = False

    def importing(self, file: str) -> None:
        self._show(f"importing {file}")

    def verifying(self, target: str, number: int, total: int, case_id: str) -> None:
        case = f" [{case_id}]" if case_id and case_id != "base" else ""
        self._show(f"{number} of {total}  {target}{case}")

    def stop(self) -> None:
        if self._shown:
            self._status.stop()

    def _show(self, text: str) -> None:
        from rich.text import Text  # noqa: PLC0415

        if not self._shown and time.monotonic() - self._since < QUIET_SECONDS:
            return
        self._status.update(Text(text))
        if not self._shown:
            self._status.start()
            self._shown = True
