"""Nodes of a method in source order, without the functions and classes defined inside it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

_INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


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


def names_in(node: ast.AST) -> set[str]:
    """Every name that is read in an expression."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


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
