"""Whether a name that code looks up in vain is bound anywhere in its file, and by what."""

from __future__ import annotations

import ast
import builtins
import linecache
import re

from gradverify.model import RaisedError
from gradverify.source import tree_of

_NOT_DEFINED = re.compile(r"name '(\w+)' is not defined")
"""Python's own message of a NameError."""

_DYNAMIC = frozenset({"globals", "exec", "setattr", "__getattr__"})
"""What may bind any name of a module."""


def is_bound_nowhere(error: RaisedError) -> bool:
    """Whether an exception is that of a name which its file binds nowhere: no inputs make it one."""
    name = _missing(error)
    return bool(name) and _binders(error, name) == frozenset()


def missing_package(error: RaisedError) -> str:
    """The package that an exception misses, at an import or where a failed one has left a name unbound."""
    if error.type in {"ModuleNotFoundError", "ImportError"} and not error.deliberate:
        found = re.search(r"'([\w.]+)'", error.message)
        return found[1] if found else error.message
    name = _missing(error)
    return name if name and _binders(error, name) == frozenset({"import"}) else ""


def _missing(error: RaisedError) -> str:
    found = _NOT_DEFINED.match(error.message) if error.type == "NameError" else None
    return found[1] if found and not hasattr(builtins, found[1]) else ""


def _binders(error: RaisedError, name: str) -> frozenset[str] | None:
    """What binds a name in the file in which an exception was raised: `import`, `other`; None if unknown."""
    if not error.frames:
        return None
    try:
        tree = tree_of("".join(linecache.getlines(error.frames[-1].file)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not tree.body:
        return None
    nodes = list(ast.walk(tree))
    imports = [a for n in nodes if isinstance(n, ast.Import | ast.ImportFrom) for a in n.names]
    dynamic = any(isinstance(n, ast.Name) and n.id in _DYNAMIC for n in nodes)
    if dynamic or any(a.name == "*" for a in imports):
        return None
    imported = {a.asname or a.name.partition(".")[0] for a in imports}
    others = {bound for n in nodes for bound in _bound_by(n)}
    binders = (("import", imported), ("other", others))
    return frozenset(what for what, names in binders if name in names)


def _bound_by(node: ast.AST) -> list[str | None]:
    """The names that a node binds, which is no import."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.ExceptHandler(name=bound) | ast.MatchAs(name=bound) | ast.MatchStar(name=bound):
            return [bound]
        case ast.Global(names=names):
            return [*names]
        case _:
            return []
