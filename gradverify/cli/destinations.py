"""Files and folders that a run writes: refused before the work where they cannot be, or must not be."""

from __future__ import annotations

import os
from pathlib import Path

from gradverify.errors import UsageError
from gradverify.report.formats import Format

SOURCES = frozenset({".py", ".pyi", ".ipynb", ".yaml", ".yml", ".toml"})
"""Endings of what is verified, and of what says how."""


def report_files(texts: list[str] | None) -> tuple[tuple[Format, Path], ...]:
    """Read `--report`.

    Raises `UsageError` for what is not FORMAT=PATH, and for a file that cannot be written: before the work.
    """
    files = []
    for text in texts or ():
        name, _, path = text.partition("=")
        if name not in list(Format) or not path:
            raise UsageError(f"--report: `{text}` is not FORMAT=PATH, with a format of {', '.join(Format)}")
        file = Path(path)
        _refuse_source(file, "--report")
        refuse_unwritable(file, "--report")
        files.append((Format(name), file))
    if len({path.resolve() for _, path in files}) < len(files):
        raise UsageError("--report: two reports to one file")
    return tuple(files)


def _refuse_source(file: Path, option: str) -> None:
    """Raise `UsageError` for a file that holds what is verified, or how: no report is called so."""
    if file.suffix in SOURCES:
        raise UsageError(f"{option}: `{file}` is named like a module, a spec or a configuration")


def refuse_unwritable(file: Path, option: str) -> None:
    """Raise `UsageError` for a file that cannot be written: before the work."""
    reason = ""
    if file.is_dir():
        reason = "it is a folder"
    elif not file.parent.is_dir():
        reason = f"there is no folder `{file.parent}`"
    elif not os.access(file if file.exists() else file.parent, os.W_OK):
        reason = "permission denied"
    if reason:
        raise UsageError(f"{option}: `{file}` cannot be written: {reason}")
