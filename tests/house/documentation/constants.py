"""The table of the numbers that a verdict hangs on, each with what stands below it in the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

PACKAGE = Path(__file__).parents[3] / "gradverify"
FOLDERS = (
    "verifier/witnesses",
    "verifier/verify",
    "verifier/numerics",
    "verifier/inputs",
    "verifier/questions/dtypes",
    "verifier/neighbours",
    "verifier/questions",
)
"""Rooms in which numbers decide."""


def constants() -> str:
    """Every numerical constant of these rooms: one table for each module."""
    parts = []
    for folder in FOLDERS:
        for file in sorted((PACKAGE / folder).glob("*.py")):
            rows = [f"| `{name}` | `{value}` | {words} |" for name, value, words in _constants_of(file)]
            if rows:
                where = file.relative_to(PACKAGE.parent).as_posix()
                head = [f"## {where}", "", "| constant | value | meaning and source |", "|---|---|---|"]
                parts.append("\n".join([*head, *rows]))
    return "\n\n".join(parts)


def _constants_of(file: Path) -> Iterator[tuple[str, str, str]]:
    source = file.read_text(encoding="utf-8")
    body = ast.parse(source).body
    for node, below in pairwise(body):
        documented = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(node, ast.Assign) and documented and _is_numerical(node.value):
            name, value = ast.unparse(node.targets[0]), ast.get_source_segment(source, node.value) or ""
            words = " ".join(str(below.value.value).split()) if isinstance(below.value, ast.Constant) else ""
            yield name, " ".join(value.split()).replace("|", "\\|"), words.replace("|", "\\|")


def _is_numerical(value: ast.expr) -> bool:
    """Numbers, arithmetic on them, and tuples, mappings and records of such: no words."""
    parts = list(ast.walk(value))
    leaves = [leaf for leaf in parts if isinstance(leaf, ast.Constant)]
    calls = any(isinstance(p, ast.Lambda | ast.Subscript) or _is_computed(p) for p in parts)
    return bool(leaves) and not calls and all(isinstance(leaf.value, int | float) for leaf in leaves)


def _is_computed(part: ast.AST) -> bool:
    """Whether it is a call of anything but a class of this project, `Level(2.0**-12, 2.0**-33)`."""
    return isinstance(part, ast.Call) and not (isinstance(part.func, ast.Name) and part.func.id[0].isupper())
