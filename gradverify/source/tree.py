"""Syntax trees: parsed once; what runs when a body runs; names, numbers and calls in an expression."""

from __future__ import annotations

import ast
import inspect
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import FunctionType
from typing import Any

KEPT_TREES = 16
"""Files whose trees are kept: a module, and those of its package that call it."""

KEPT_DEFINITIONS = 128
"""Functions whose trees are kept: those of one target, and the helpers that they call."""

_INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@lru_cache(maxsize=KEPT_TREES)
def tree_of(source: str | bytes) -> ast.Module:
    """The tree of a file's text, parsed once for all who ask; it must not be changed.

    Raises as `ast.parse` does.
    """
    with warnings.catch_warnings(action="ignore"):
        return ast.parse(source)


def definition(function: Any) -> ast.FunctionDef | None:  # noqa: ANN401 - whatever the user's is
    """The tree of a live function, without what decorators put around it; it must not be changed.

    Lines count from 1 at its first decorator. None where the source cannot be had.
    """
    try:
        plain = inspect.unwrap(function)
        return _definition(plain) if isinstance(plain, FunctionType) else _first_function(plain)
    except (OSError, TypeError, SyntaxError, ValueError):
        return None


@lru_cache(maxsize=KEPT_DEFINITIONS)
def _definition(function: FunctionType) -> ast.FunctionDef | None:
    return _first_function(function)


def _first_function(source: Any) -> ast.FunctionDef | None:  # noqa: ANN401
    with warnings.catch_warnings(action="ignore"):
        tree = ast.parse(textwrap.dedent(inspect.getsource(source)))
    return next((n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)), None)


def definitions_behind(function: Any) -> Iterator[tuple[ast.FunctionDef, Mapping[str, Any]]]:  # noqa: ANN401
    """The definition of a live function and of those that it calls by name, with the names known there."""
    own = definition(function)
    if own is None:
        return
    known = getattr(function, "__globals__", {})
    yield own, known
    called = {n.func.id for n in ast.walk(own) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    for name in sorted(called):
        helper = known.get(name)
        inner = definition(helper) if isinstance(helper, FunctionType) and helper is not function else None
        if inner is not None:
            yield inner, helper.__globals__  # type: ignore[union-attr]


def iterates(function: Any) -> bool:  # noqa: ANN401
    """Whether a live function, or a helper of it, repeats a step until it converges, as Newton's."""
    nodes = (node for body, _ in definitions_behind(function) for node in ast.walk(body))
    return any(isinstance(node, ast.While) or rounds_of(node) is not None for node in nodes)


def rounds_of(node: ast.AST) -> ast.Call | None:
    """The `range(50)` of an iteration: nothing in its loop counts, and no size is held against it."""
    if not (
        isinstance(node, ast.For) and isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Call)
    ):
        return None
    inside = [n for statement in node.body for n in ast.walk(statement)]
    counted = any(isinstance(n, ast.AugAssign) or getattr(n, "id", "") == node.target.id for n in inside)
    return node.iter if len(node.iter.args) == 1 and not counted else None


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """A node and everything below it that runs when it runs, in source order."""
    left = [node]
    while left:
        here = left.pop()
        yield here
        below = [child for child in ast.iter_child_nodes(here) if not isinstance(child, _INNER)]
        left += reversed(below)


def own_nodes_of(body: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """The same of a list of statements."""
    for statement in body:
        if not isinstance(statement, _INNER):
            yield from own_nodes(statement)


def blocks(body: Sequence[ast.stmt]) -> Iterator[Sequence[ast.stmt]]:
    """A list of statements and every list nested in it."""
    yield body
    for statement in body:
        if isinstance(statement, _INNER):
            continue
        for field in ("body", "orelse", "finalbody"):
            inner = getattr(statement, field, None)
            if isinstance(inner, list):
                yield from blocks(inner)
        for holder in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            yield from blocks(holder.body)


def names_read(node: ast.AST) -> set[str]:
    """Every name that is read in an expression."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def names_bound(body: Sequence[ast.stmt]) -> set[str]:
    """Every name that statements assign to, without functions inside."""
    nodes = own_nodes_of(body)
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def bindings(body: Sequence[ast.stmt]) -> dict[str, list[ast.expr | None]]:
    """What each local name is bound to, everywhere; None for a binding whose value cannot be read off."""
    found: dict[str, list[ast.expr | None]] = {}
    seen: set[int] = set()
    for node in own_nodes_of(body):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(node.value)
                    seen.add(id(target))
    for statement in body:
        for node in ast.walk(statement):
            bound = isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
            if bound and isinstance(node, ast.Name) and id(node) not in seen:
                found.setdefault(node.id, []).append(None)
    return found


def imported_names(tree: ast.Module) -> dict[str, str]:
    """What each imported name stands for: `{"F": "torch.nn.functional"}`."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            for alias in node.names:
                names[alias.asname or alias.name] = f"{base}.{alias.name}"
    return names


def dotted(node: ast.expr, names: Mapping[str, str]) -> str:
    """The full name an expression stands for, empty for what is no name."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        base = dotted(node.value, names)
        return f"{base}.{node.attr}" if base else ""
    return ""


def last_name(node: ast.AST) -> str:
    """The last part of a dotted name, empty for what is no name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def called_name(node: ast.AST) -> str:
    """The last name of what is called: `mm` of `torch.mm(a, b)` and of `a.mm(b)`; empty for another node."""
    return last_name(node.func) if isinstance(node, ast.Call) else ""


def root_name(node: ast.AST) -> str:
    """The name that an expression of attributes and items begins with; empty for none."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def is_none(node: ast.AST) -> bool:
    """Whether an expression is the literal None."""
    return isinstance(node, ast.Constant) and node.value is None


def integer(node: ast.AST) -> int | None:
    """The value of a literal integer, also a negative one; None for anything else."""
    match node:
        case ast.Constant(value=bool()):
            return None
        case ast.Constant(value=int() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            positive = integer(operand)
            return None if positive is None else -positive
        case _:
            return None


def parameters_of(function: ast.FunctionDef) -> tuple[str, ...]:
    """The parameters that can be given by position, in order."""
    return tuple(a.arg for a in (*function.args.posonlyargs, *function.args.args))


def every_parameter(function: ast.FunctionDef) -> tuple[str, ...]:
    """The same with those by keyword only, `*args` and `**kwargs`."""
    arguments = function.args
    rest = (*arguments.kwonlyargs, *filter(None, (arguments.vararg, arguments.kwarg)))
    return (*parameters_of(function), *(a.arg for a in rest))
