"""Where a module's imports stand: what is bound above a line, and where one more import goes."""

from __future__ import annotations

import ast

from gradverify.source.module import imports_of, module_of
from gradverify.source.tree import DEFINITIONS, first_line, names_bound


def is_bound_above(source: str, name: str, line: int) -> bool:
    """Whether a module binds a name above a line; `import *` may bind any."""
    body = module_of(source).tree.body
    above = [s for s in body if s.lineno < line and not isinstance(s, DEFINITIONS)]
    imported = {one.bound for s in above for one in imports_of(ast.walk(s))}
    return bool(imported & {name, "*"}) or name in names_bound(above)


def import_line(source: str) -> int:
    """The line, from 1, above which one more import goes: behind the last one above every class and def.

    Imports in the blocks of a statement (`try`, `if TYPE_CHECKING`) may not run, and are passed over. Where
    there are none, it goes behind the docstring.
    """
    tree = module_of(source).tree
    defining = (any(isinstance(node, DEFINITIONS) for node in ast.walk(s)) for s in tree.body)
    above = tree.body[: next((k for k, defines in enumerate(defining) if defines), len(tree.body))]
    imports = [node for node in above if isinstance(node, ast.Import | ast.ImportFrom)]
    if imports:
        line = _end(imports[-1]) + 1
    else:
        rest = tree.body[1:] if ast.get_docstring(tree, clean=False) is not None else tree.body
        line = min(map(first_line, rest), default=1)
    for statement in tree.body:  # `import a; b = (` goes on below
        if first_line(statement) < line:
            line = max(line, _end(statement) + 1)
    return line


def _end(statement: ast.stmt) -> int:
    return statement.end_lineno or statement.lineno
