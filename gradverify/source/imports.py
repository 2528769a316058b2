"""Where a module's imports stand: what is bound above a line, and where one more import goes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def is_bound_above(tree: ast.Module, name: str, line: int) -> bool:
    """Whether a module binds a name above a line; `import *` may bind any."""
    return any(
        bound in {name, "*"}
        for statement in tree.body
        if statement.lineno < line
        for bound in _bound_by(statement)
    )


def _bound_by(statement: ast.stmt) -> Iterator[str]:
    """What a statement of a module binds there, its blocks included."""
    for node in ast.walk(statement) if not isinstance(statement, _DEFINITIONS) else ():
        if isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def import_line(tree: ast.Module) -> int:
    """The line, from 1, above which one more import goes: behind the last one above every class and def.

    Imports in the blocks of a statement (`try`, `if TYPE_CHECKING`) may not run, and are passed over. Where
    there are none, it goes behind the docstring.
    """
    above = []
    for statement in tree.body:
        if any(isinstance(node, _DEFINITIONS) for node in ast.walk(statement)):
            break
        above.append(statement)
    imports = [node for node in above if isinstance(node, ast.Import | ast.ImportFrom)]
    if imports:
        line = _end(imports[-1]) + 1
    else:
        rest = tree.body[1:] if ast.get_docstring(tree, clean=False) is not None else tree.body
        line = min((_start(node) for node in rest), default=1)
    for statement in tree.body:  # `import a; b = (` goes on below
        if _start(statement) < line:
            line = max(line, _end(statement) + 1)
    return line


def _start(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(node.lineno for node in decorators)])


def _end(statement: ast.stmt) -> int:
    return statement.end_lineno or statement.lineno
