"""The user's own tests that name a target: what `gradverify record` can run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from gradverify.model import Target, shown_path

FOLDERS = ("tests", "test")
"""Where tests lie, in the current folder and beside a module."""

PATTERNS = ("test_*.py", "*_test.py")

MOST_FILES = 500
"""Files that are looked at."""


def own_test_of(target: Target) -> str:
    """The first test file that names a target, as a command takes it; empty where there is none."""
    name = re.compile(rf"\b{re.escape(target.name.rpartition('.')[2])}\b")
    for path in islice(_test_files(Path(target.file)), MOST_FILES):
        try:
            if name.search(path.read_text("utf-8")):
                return shown_path(path)
        except (OSError, ValueError):
            continue
    return ""


def _test_files(module: Path) -> Iterator[Path]:
    """Test files beside a module, then those in the folders of tests."""
    beside = module.absolute().parent
    for pattern in PATTERNS:
        yield from sorted(beside.glob(pattern))
    for folder in dict.fromkeys(above / name for above in (beside, Path.cwd()) for name in FOLDERS):
        for pattern in PATTERNS:
            yield from sorted(folder.rglob(pattern))
