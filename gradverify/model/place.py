"""A place in a file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Location:
    """A place in a file. Lines and columns count from 1; column 0 means the whole line."""

    file: str
    line: int
    column: int = 0
