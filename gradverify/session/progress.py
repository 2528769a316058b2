"""Progress on stderr: only on a terminal, only after about a second, gone when the report comes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from gradverify.session.request import Progress


@contextmanager
def on_terminal(stream: TextIO) -> Iterator[Progress]:
    """Progress for a terminal; silence for anything else."""
    if not stream.isatty():
        yield Progress()
        return
    from gradverify.session.progress_line import Line  # noqa: PLC0415 - only a terminal needs rich

    line = Line(stream)
    try:
        yield line
    finally:
        line.stop()
