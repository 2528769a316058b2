"""A place in a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


def shown_path(path: Path) -> str:
    """Return a path as messages show it: POSIX, relative to the current folder where it lies below."""
    absolute, here = path.absolute(), Path.cwd()
    return (absolute.relative_to(here) if absolute.is_relative_to(here) else path).as_posix()


@dataclass(frozen=True, order=True)
class Location:
    """A place in a file. Lines and columns count from 1; column 0 means the whole line."""

    file: str
    line: int
    column: int = 0
