"""What the targets of a loop stand for: entries of a list, of several that are zipped."""

from __future__ import annotations

import ast
from collections.abc import Iterator

LOOPS = frozenset({"reversed", "enumerate", "list", "iter"})
"""What a loop puts around the list that it goes through."""


def pairs_of_loop(target: ast.expr, several: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(target, what it goes through) of a loop; one pair for each of those that are zipped."""
    match target, several:
        case ast.Tuple(elts=names), ast.Call(func=ast.Name(id="zip"), args=zipped):
            for one, other in zip(names, zipped, strict=False):
                yield from pairs_of_loop(one, other)
        case ast.Tuple(elts=[_, entry]), ast.Call(func=ast.Name(id="enumerate"), args=[inner, *_]):
            yield from pairs_of_loop(entry, inner)
        case ast.Tuple(), ast.Call(func=ast.Name(id=name), args=[inner, *_]) if name in LOOPS:
            yield from pairs_of_loop(target, inner)
        case _:
            yield target, several


def looped(node: ast.expr) -> ast.expr:
    """What a loop goes through, without what is put around it."""
    match node:
        case ast.Call(func=ast.Name(id=name), args=[inner, *_]) if name in LOOPS:
            return looped(inner)
        case ast.Subscript(value=inner, slice=ast.Slice()):
            return inner
        case _:
            return node
