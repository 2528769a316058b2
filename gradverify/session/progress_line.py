"""The line on a terminal that says what is being done, below the errors that are certain."""

from __future__ import annotations

import threading
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from gradverify.model import Finding, Target
from gradverify.session.request import Progress

QUIET_SECONDS = 1.0
"""Runs shorter than this show no progress at all, unless something is wrong."""

REFRESHES = 12.5
"""A second, as often as rich's own spinner moves."""

MOST_ERRORS = 5
"""Errors shown before the report; each is a line, and the report has all of them."""


class Line(Progress):
    """One line that says what is being done. A timer shows it: a hanging import sends no event that could.

    Errors appear above it as soon as they are certain. It is gone when the report comes, which has them
    with their causes.
    """

    def __init__(self, stream: TextIO) -> None:
        """Begin to wait: after a second, or at the first error, it is shown on the stream."""
        console = Console(file=stream, markup=False, highlight=False, emoji=False)
        self._live = Live(console=console, refresh_per_second=REFRESHES, transient=True)
        self._spinner = Spinner("dots")
        self._errors: dict[tuple[str, str, str | None], Text] = {}
        self._lock = threading.Lock()
        self._over = False
        self._timer = threading.Timer(QUIET_SECONDS, self._start)
        self._timer.daemon = True
        self._timer.start()

    def importing(self, file: str) -> None:
        """Say that a module is being imported."""
        self._update(f"importing {file}")

    def verifying(self, target: str, number: int, total: int, step: str) -> None:
        """Say which step begins: a case, or what is looked for."""
        shown = f" [{step}]" if step and step != "base" else ""
        self._update(f"{number} of {total}  {target}{shown}")

    def found(self, target: Target, finding: Finding) -> None:
        """Show an error at once."""
        said = f"{target.file}:{target.line}: {finding.code} {target.name}: {finding.message}"
        self._errors.setdefault((target.id, finding.code, finding.input), _visible(said))
        self._show()
        self._start()

    def stop(self) -> None:
        """Take all of it away."""
        self._timer.cancel()
        with self._lock:
            self._over = True
            self._live.stop()

    def _update(self, text: str) -> None:
        self._spinner.update(text=_visible(text))
        self._show()

    def _show(self) -> None:
        first = list(self._errors.values())[:MOST_ERRORS]
        more = len(self._errors) - len(first)
        lines = [*first, *([_visible(f"and {more} more")] if more else [])]
        self._live.update(Group(*lines, self._spinner))

    def _start(self) -> None:
        with self._lock:
            if not self._over:
                self._live.start()


def _visible(text: str) -> Text:
    """One line at most, whatever a file is called."""
    shown = "".join(char if char.isprintable() else "?" for char in text)
    return Text(shown, no_wrap=True, overflow="ellipsis")
