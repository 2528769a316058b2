"""Programs of the user's own that call a target: what `gradverify record` can run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from gradverify.model import Target, shown_path
from gradverify.source import tree_of

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
    return f"python {target.file}" if _runs_it(source, target.attribute.partition(".")[0]) else ""


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


def _runs_it(source: str, name: str) -> bool:
    """Whether running a file as a program uses one of its names, directly or through other names of it."""
    try:
        body = tree_of(source).body
    except (SyntaxError, ValueError, RecursionError):
        return False
    main = [node for node in body if isinstance(node, ast.If) and _is_of_a_program(node.test)]
    named = {word for node in main for word in _names(node)}
    leads = {node.name: _names(node) for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in body:
        if isinstance(node, ast.Assign):
            leads |= {t.id: _names(node.value) for t in node.targets if isinstance(t, ast.Name)}
    waiting, reached = list(named), set[str]()
    while waiting:
        word = waiting.pop()
        if word not in reached:
            reached.add(word)
            waiting += leads.get(word, ())
    return name in reached


def _is_of_a_program(test: ast.expr) -> bool:
    """`__name__ == "__main__"`, either way round."""
    return isinstance(test, ast.Compare) and {"__name__", "'__main__'"} <= {
        ast.unparse(side) for side in (test.left, *test.comparators)
    }


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
