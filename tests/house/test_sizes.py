"""Limits that keep the house readable: lengths of modules and functions, unique names, a short overview."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOUSE = ROOT / "gradverify"

LONGEST_MODULE, LONGEST_FUNCTION = 600, 60
"""Lines; a function's docstring does not count. Complexity is ruff's to limit."""

WORDS = 900
"""Of the page on the architecture: fewer."""


def modules() -> list[Path]:
    return sorted(p for p in HOUSE.rglob("*.py") if "__pycache__" not in p.parts)


def long_functions(path: Path) -> Iterator[tuple[str, int]]:
    """(`module.py:Class.function`, lines) of all that are too long, without their docstrings."""

    def below(node: ast.AST, within: str) -> Iterator[tuple[str, int]]:
        for child in ast.iter_child_nodes(node):
            name = f"{within}.{child.name}".lstrip(".") if hasattr(child, "name") else within
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                first = child.body[0]
                is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
                docstring = first.end_lineno - first.lineno + 1 if is_docstring else 0
                lines = child.end_lineno - child.lineno + 1 - docstring
                if lines > LONGEST_FUNCTION:
                    yield f"{path.name}:{name}", lines
            yield from below(child, name)

    yield from below(ast.parse(path.read_text()), "")


def test_modules_are_short():
    lengths = {str(p.relative_to(HOUSE)): len(p.read_text().splitlines()) for p in modules()}
    assert not {name: lines for name, lines in lengths.items() if lines > LONGEST_MODULE}


def test_functions_are_short():
    assert not [found for path in modules() for found in long_functions(path)]


def test_module_names_are_unique_within_a_package():
    def package(path: Path) -> tuple[str, ...]:
        parts = path.relative_to(HOUSE).parts[:-1]
        return parts[: 2 if parts[:1] == ("verifier",) else 1]

    names = Counter((package(p), p.stem) for p in modules() if p.stem != "__init__")
    assert not [name for name, count in names.items() if count > 1]


def test_the_length_of_a_function_leaves_out_its_docstring(tmp_path):
    body = "\n".join("    x = 1" for _ in range(LONGEST_FUNCTION - 1))
    (tmp_path / "m.py").write_text(
        f'def short():\n    """Two\n\n    lines."""\n{body}\n\ndef long():\n{body}\n    y = 1\n'
    )
    assert list(long_functions(tmp_path / "m.py")) == [("m.py:long", LONGEST_FUNCTION + 1)]


def test_the_overview_of_the_architecture_is_short_and_names_what_exists():
    page = (ROOT / "ARCHITECTURE.md").read_text()
    assert len(page.split()) < WORDS
    named = set(re.findall(r"`([\w/]+(?:/|\.py|\.md))`", page))
    below = (ROOT, HOUSE, HOUSE / "verifier", HOUSE / "verifier" / "numerics")
    assert named and not [name for name in named if not any((folder / name).exists() for folder in below)]
