"""What a target uses of the other modules of its own package, read from their source: nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gradverify.source.reachable import statements_behind
from gradverify.source.tree import tree_of

MOST_MODULES = 32
"""Other modules that are read for one target."""


@dataclass(frozen=True)
class _Imported:
    """A name as an import binds it."""

    level: int
    """Of a relative import, the dots."""
    module: str
    name: str = ""
    """What is taken of the module; empty for the module itself, `*` for everything."""


def statements_elsewhere(path: Path, source: str, attribute: str) -> Iterator[tuple[str, ast.stmt]]:
    """(file name, statement) of what a target of a module uses of other modules of its own package.

    `attribute` is how the module calls the target.
    """
    waiting, seen, read = [(path, source, attribute)], {(path, attribute)}, {path: source}
    while waiting:
        here, text, name = waiting.pop()
        for statement in statements_behind(text, name):
            if here != path:
                yield here.name, statement
            for file, used in _used_of_others(here, text, statement):
                if (file, used) in seen or (file not in read and len(read) > MOST_MODULES):
                    continue
                seen.add((file, used))
                read.setdefault(file, _text(file))
                waiting.append((file, read[file], used))


def _used_of_others(path: Path, source: str, statement: ast.stmt) -> Iterator[tuple[Path, str]]:
    """(file, name in it) of what a statement uses of other modules of the package."""
    imported = _imports(source)
    for node in ast.walk(statement):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            whole = imported.get(node.value.id)
            if whole is not None and (file := _file_of(path, whole.level, _joined(whole))) is not None:
                yield file, node.attr
        elif isinstance(node, ast.Name) and (one := imported.get(node.id)) is not None and one.name:
            if (file := _file_of(path, one.level, one.module)) is not None:
                yield file, one.name
        elif isinstance(node, ast.Name) and node.id not in imported:
            for starred in (i for i in imported.values() if i.name == "*"):
                if (file := _file_of(path, starred.level, starred.module)) is not None:
                    yield file, node.id


def _joined(one: _Imported) -> str:
    return ".".join(filter(None, (one.module, one.name)))


def _imports(source: str) -> dict[str, _Imported]:
    """What each imported name of a module stands for; those of star imports under a name that is none."""
    try:
        tree = tree_of(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    found: dict[str, _Imported] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name] = _Imported(0, alias.name)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                key = f"* of {node.module}" if alias.name == "*" else alias.asname or alias.name
                found[key] = _Imported(node.level, node.module or "", alias.name)
    return found


def _file_of(path: Path, level: int, dotted: str) -> Path | None:
    """The file of a module of the package that a file is in, or beside a lone file; None for any other."""
    if level:
        folder = path.parents[level - 1] if level <= len(path.parents) else None
    else:
        folder = path.parent
        while (folder / "__init__.py").is_file():
            folder = folder.parent
    if folder is None:
        return None
    stem = folder.joinpath(*filter(None, dotted.split(".")))
    candidates = (stem.with_name(f"{stem.name}.py"), stem / "__init__.py")
    return next((file for file in candidates if file.is_file() and file != path), None)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError):
        return ""
