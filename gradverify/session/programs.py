"""Programs of the user's own that call a target: what `gradverify record` can run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from gradverify.model import Target, shown_path
from gradverify.source import module_of

FOLDERS = ("tests", "test")
"""Where tests lie, in the current folder and beside a module."""

PATTERNS = ("test_*.py", "*_test.py")

MOST_FILES = 500
"""Files that are looked at."""


def record_command(target: Target, program: str) -> str:
    """The command that writes a spec of the calls in a program, beside one that there is already."""
    spec = Path(target.file).with_suffix(".gradverify.yaml")
    spec = spec.with_name(f"{Path(target.file).stem}.recorded.yaml") if spec.exists() else spec
    return f"gradverify record -o {spec.as_posix()} -- {program}"


def own_program_of(target: Target, source: str) -> str:
    """A command that calls a target: the first test file that names it, or its own file; empty without one.

    `source` is the text of the target's file.
    """
    tests = _own_test_of(target)
    if tests:
        return f"pytest {tests}"
    return f"python {target.file}" if module_of(source).runs(target.attribute.partition(".")[0]) else ""


def _own_test_of(target: Target) -> str:
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
