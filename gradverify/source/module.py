"""The source of one file, parsed once for all who ask: what it imports, binds and defines, and where.

What is bound above a line, and where one more import goes.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.util import decode_source

from gradverify.source.tree import (
    DEFINITIONS,
    classes_within,
    each,
    first_line,
    lines_of,
    names_bound,
    names_in,
)

KEPT_MODULES = 16
"""Files whose readings are kept: a module, and those of its package that call it."""

UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
"""What the parser raises for a text that is no Python."""

_BINDS_UNSEEN = frozenset({"globals", "exec", "setattr", "__getattr__"})
"""What may bind any name of a module."""


@dataclass(frozen=True)
class Import:
    """One name that an import binds."""

    module: str
    """With the dots of a relative one before it."""
    name: str
    """What is taken of the module; empty for the module itself, `*` for everything."""
    alias: str
    line: int

    @property
    def level(self) -> int:
        """How many dots there are."""
        return len(self.module) - len(self.module.lstrip("."))

    @property
    def bound(self) -> str:
        """The name in the module that imports."""
        return self.alias or self.name or self.module.partition(".")[0]

    @property
    def full(self) -> str:
        """What that name stands for: `torch.nn.functional`."""
        return f"{self.module}.{self.name}" if self.name else self.module if self.alias else self.bound


def imports_of(nodes: Iterable[ast.AST]) -> Iterator[Import]:
    """What import statements among some nodes bind."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (Import(a.name, "", a.asname or "", node.lineno) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from (Import(module, a.name, a.asname or "", node.lineno) for a in node.names)


@dataclass(frozen=True)
class Binders:
    """What binds a name, as far as one line sees it."""

    imports: tuple[Import, ...]
    otherwise: bool
    """Whether something else does."""


@dataclass(frozen=True, eq=False)
class Module:
    """One file. Its tree is shared: copy it before a change."""

    tree: ast.Module
    error: Exception | None = None
    """Why it is no Python; the tree is empty then."""

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """Every import, wherever it stands."""
        return tuple(imports_of(ast.walk(self.tree)))

    @cached_property
    def imported(self) -> Mapping[str, str]:
        """What each imported name stands for: `{"F": "torch.nn.functional"}`."""
        return {one.bound: one.full for one in self.imports}

    @cached_property
    def functions(self) -> Mapping[str, ast.FunctionDef]:
        """The functions at its top level, by name."""
        return {node.name: node for node in self.tree.body if isinstance(node, ast.FunctionDef)}

    @cached_property
    def classes(self) -> Mapping[str, Sequence[tuple[int, int]]]:
        """First and last lines of every class statement, by qualified name, in source order."""
        found: dict[str, list[tuple[int, int]]] = {}
        for name, node in classes_within(self.tree):
            found.setdefault(name, []).append((first_line(node), lines_of(node)[-1]))
        return found

    @cached_property
    def strings(self) -> tuple[tuple[str, int], ...]:
        """Every literal string, with its line."""
        constants = each(ast.Constant, self.tree)
        return tuple((n.value, n.lineno) for n in constants if isinstance(n.value, str))

    @cached_property
    def raising(self) -> frozenset[int]:
        """The lines of `raise` and `assert` statements."""
        statements = (n for n in ast.walk(self.tree) if isinstance(n, ast.Raise | ast.Assert))
        return frozenset(line for statement in statements for line in lines_of(statement))

    @cached_property
    def bound(self) -> Mapping[str, Sequence[ast.stmt]]:
        """Its statements by the names that they bind, also those under an `if` or a `try`."""
        bound: dict[str, list[ast.stmt]] = {}
        for statement in _statements(self.tree):
            for name in _bound_by(statement):
                bound.setdefault(name, []).append(statement)
        return bound

    def behind(self, *names: str) -> Iterator[ast.stmt]:
        """The statements that bind some names, `Outer` for `Outer.Inner`, and those behind what these use."""
        waiting = [name.partition(".")[0] for name in names]
        seen = {*waiting}
        while waiting:
            for statement in self.bound.get(waiting.pop(), ()):
                yield statement
                used = names_in(statement)
                waiting += sorted(used - seen)
                seen |= used

    def runs(self, name: str) -> bool:
        """Whether running it as a program uses a name, directly or through other names of it."""
        main = [node for node in self.tree.body if isinstance(node, ast.If) and _is_of_a_program(node.test)]
        named = {word for node in main for word in names_in(node)}
        return name in named or any(name in names_in(s) for s in self.behind(*named))

    def binders(self, name: str, line: int) -> Binders | None:
        """What binds a name that code on a line reads; None where anything may.

        What another function binds is not seen there, unless it declares it global.
        """
        starred = any(one.name == "*" for one in self.imports)
        if not self.tree.body or starred or names_in(self.tree) & _BINDS_UNSEEN:
            return None
        seen = [*seen_from(self.tree, line, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))]
        imports = tuple(one for one in imports_of(seen) if one.bound == name)
        return Binders(imports, any(name in _names_given(node) for node in seen))

    def lacks(self, name: str) -> bool:
        """Whether it certainly has no such name at its top."""
        return self.binders(name, 0) == Binders((), otherwise=False) and "__getattr__" not in self.functions


@lru_cache(maxsize=KEPT_MODULES)
def module_of(source: str | bytes) -> Module:
    """The reading of a file's text."""
    if isinstance(source, bytes):
        with suppress(SyntaxError, ValueError):
            return module_of(decode_source(source))
    try:
        with warnings.catch_warnings(action="ignore"):
            return Module(ast.parse(source))
    except UNREADABLE as error:
        return Module(ast.Module([], []), error)


def _statements(tree: ast.AST) -> Iterator[ast.stmt]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt):
            yield node
        if isinstance(node, ast.If | ast.Try | ast.ExceptHandler):
            yield from _statements(node)


def _bound_by(statement: ast.stmt) -> Iterable[str]:
    match statement:
        case ast.Assign(targets=targets):
            return [n.id for target in targets for n in each(ast.Name, target)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return (name,)
        case _:
            return _names_given(statement)


def _is_of_a_program(test: ast.expr) -> bool:
    """`__name__ == "__main__"`, either way round."""
    return isinstance(test, ast.Compare) and {"__name__", "'__main__'"} <= {
        ast.unparse(side) for side in (test.left, *test.comparators)
    }


def seen_from(tree: ast.AST, line: int, closed: tuple[type[ast.expr | ast.stmt], ...]) -> Iterator[ast.AST]:
    """The nodes of a file but for those inside of `closed` ones that do not hold a line."""
    waiting = [(tree, True)]
    while waiting:
        node, seen = waiting.pop()
        if seen or isinstance(node, ast.Global):
            yield node
        if isinstance(node, closed):
            seen = seen and line in lines_of(node)
        waiting += [(child, seen) for child in ast.iter_child_nodes(node)]


def _names_given(node: ast.AST) -> Sequence[str]:
    """The names that a node binds, which is no import."""
    match node:
        case (
            ast.Name(id=name, ctx=ast.Store())
            | ast.arg(arg=name)
            | ast.FunctionDef(name=name)
            | ast.AsyncFunctionDef(name=name)
            | ast.ClassDef(name=name)
            | ast.ExceptHandler(name=str(name))
            | ast.MatchAs(name=str(name))
            | ast.MatchStar(name=str(name))
        ):
            return (name,)
        case ast.Global(names=names):
            return names
        case _:
            return ()


def is_bound_above(source: str, name: str, line: int) -> bool:
    """Whether a module binds a name above a line; `import *` may bind any."""
    body = module_of(source).tree.body
    above = [s for s in body if s.lineno < line and not isinstance(s, DEFINITIONS)]
    imported = {one.bound for s in above for one in imports_of(ast.walk(s))}
    return bool(imported & {name, "*"}) or name in names_bound(above)
