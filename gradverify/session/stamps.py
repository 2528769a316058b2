"""Stamps of files: where none of it changed, neither did what a file holds."""

from __future__ import annotations

from pathlib import Path

Stamp = tuple[int, int, int]
"""(modification time in ns, size, inode) of a file: where none of them changed, its content did not."""


def stamp_of(path: Path) -> Stamp | None:
    """The stamp of a file or folder; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
