"""The modules of a folder: which files are looked at, and which of them are worth importing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gradverify.errors import UsageError

_NOT_OURS = ("pyvenv.cfg", "conda-meta")
"""What marks a folder as a Python environment: its packages are not the user's."""


def python_files(folder: Path, excluded: Callable[[Path], bool]) -> Iterator[Path]:
    """The Python files below a folder, in a fixed order, without hidden folders, environments and caches."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise UsageError(f"the folder `{folder}` cannot be read: {error.strerror}") from None
    below = []
    for entry in entries:
        path = folder / entry.name
        if entry.name.startswith(".") or excluded(path):
            continue
        if entry.is_dir(follow_symlinks=False):
            below.append(path)
        elif path.suffix == ".py" and entry.is_file():
            yield path
    for path in below:
        if path.name != "__pycache__" and not any((path / mark).exists() for mark in _NOT_OURS):
            yield from python_files(path, excluded)


def may_define(path: Path) -> bool:
    """Whether a file's source holds a Function subclass or a custom operator. Nothing is imported.

    In doubt it does: a file that cannot be read or parsed is for the import to complain about.
    """
    from gradverify import source  # noqa: PLC0415 - `rules` and `--help` read none

    try:
        return source.may_define(path.read_bytes())
    except OSError:
        return True


def exclusion(patterns: Sequence[tuple[Path, str]]) -> Callable[[Path], bool]:
    """Compile `--exclude`: (folder that a pattern is relative to, pattern) pairs.

    A pattern without a slash is a file's or a folder's name, wherever it lies; one with a slash is a path.
    Raises `UsageError` for one that can match nothing.
    """
    for _, pattern in patterns:
        if not pattern.strip("/"):
            raise UsageError(f"--exclude: `{pattern}` is no pattern for a file or folder")
    compiled = [(Path(os.path.abspath(base)), _regex(pattern)) for base, pattern in patterns]  # noqa: PTH100

    def excluded(path: Path) -> bool:
        absolute = Path(os.path.abspath(path))  # noqa: PTH100 - links are not followed
        return any(
            regex.fullmatch(absolute.relative_to(base).as_posix())
            for base, regex in compiled
            if absolute.is_relative_to(base)
        )

    return excluded


def _regex(pattern: str) -> re.Pattern[str]:
    """What a path must match: the pattern itself, or anything below a folder that does."""
    pattern = pattern.removeprefix("./").rstrip("/")
    anywhere = "" if "/" in pattern else "(?:.*/)?"
    parts = re.findall(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\]|.", pattern.lstrip("/"), flags=re.DOTALL)
    try:
        return re.compile(f"{anywhere}{''.join(map(_part, parts))}(?:/.*)?", re.DOTALL)
    except re.error:
        raise UsageError(f"--exclude: `{pattern}` is no pattern for a file or folder") from None


def _part(part: str) -> str:
    known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    if part in known:
        return known[part]
    if part.startswith("[") and len(part) > 1:
        inside = part[1:-1].replace("\\", r"\\")
        return f"[^/{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
    return re.escape(part)
