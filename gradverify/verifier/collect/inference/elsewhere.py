"""Other files of the user's package that name a target: read, and never imported."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType

from gradverify.verifier.collect.inference.parsing import tree_of

MOST_FILES = 3000
"""Files of a package that are looked through; the largest on PyPI have about as many."""

MOST_BYTES = 1_000_000
"""A longer file is generated."""

MOST_READ = 8
"""Files that are read for one target, the nearest first."""

SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})
"""Folders that hold no source of the package's own."""

_CALLED = re.compile(r"\b(\w+)(?:\.apply)?\s*\(")


def trees_elsewhere(module: ModuleType | None, names: Collection[str]) -> list[ast.Module]:
    """Files of the same package, or of the same folder, that call something of this module by its name."""
    own = getattr(module, "__file__", None)
    if not own or not names:
        return []
    trees: list[ast.Module] = []
    for path in _nearest_first(Path(own).resolve()):
        tree = _parsed(path, names)
        if tree is not None:
            trees.append(tree)
        if len(trees) == MOST_READ:
            break
    return trees


@lru_cache(maxsize=2)
def _nearest_first(own: Path) -> Sequence[Path]:
    """Python files of the package around a file, those in folders near to it first."""
    top = own.parent
    while (top / "__init__.py").is_file() and (top.parent / "__init__.py").is_file():
        top = top.parent
    whole = (top / "__init__.py").is_file()
    found = [path for path in _files(top, deep=whole) if path != own]
    return sorted(found, key=lambda path: (_distance(own, path), str(path)))


def _distance(own: Path, other: Path) -> int:
    common = os.path.commonpath([own.parent, other.parent])
    return len(own.parent.parts) + len(other.parent.parts) - 2 * len(Path(common).parts)


def _files(top: Path, *, deep: bool) -> Iterator[Path]:
    count = 0
    for folder, below, names in os.walk(top):
        below[:] = sorted(b for b in below if deep and b not in SKIPPED and not b.startswith("."))
        for name in sorted(names):
            if name.endswith(".py"):
                yield Path(folder, name)
                count += 1
        if count > MOST_FILES:
            return


def _parsed(path: Path, names: Collection[str]) -> ast.Module | None:
    """The source of a file that calls something of these names; None for one that does not, or is none."""
    try:
        return tree_of(path.read_bytes()) if _called_in(path) & set(names) else None
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


@lru_cache(maxsize=MOST_FILES)
def _called_in(path: Path) -> frozenset[str]:
    """What a file calls, or calls the `apply` of, by its last name.

    Raises `OSError`.
    """
    if path.stat().st_size > MOST_BYTES:
        return frozenset()
    return frozenset(_CALLED.findall(path.read_text("utf-8", "replace")))
