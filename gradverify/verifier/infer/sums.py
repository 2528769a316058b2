"""Gradients that are one sum over everything: of one number, or of an input that has one entry."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from gradverify.source import Method, integer, returned
from gradverify.source.returned import Returned, is_always_none

DEEPEST = 3
"""Functions within functions, and names of names, that are read."""

_SUMS = frozenset({"sum", "nansum"})

_SHAPING = frozenset({"expand_as", "expand", "view_as", "reshape_as", "to", "type_as", "contiguous", "clone"})
"""Methods that give a sum the shape, the dtype or the layout of its input."""


def values_by_parameter(path: Returned, count: int) -> Sequence[ast.expr] | None:
    """What a path returns, by parameter; of one parameter it may be any expression."""
    node, values = path.node.value, path.values
    if values is None and count == 1 and node is not None:
        return [node]
    return None if any(isinstance(e, ast.Starred) for e in getattr(node, "elts", ())) else values


def sums_over_everything(names: Sequence[str], backward: Method) -> dict[str, int]:
    """The parameters whose gradient is such a sum in every path, with the dimensions that it gets.

    `(g * x).sum().expand_as(beta)` is of one number, `(g * x).sum().view(1)` of one entry.
    """
    found: dict[str, int] = {}
    paths = [values_by_parameter(path, len(names)) for path in returned(backward)]
    for place, name in enumerate(names):
        given = [path[place] for path in paths if path is not None and place < len(path)]
        ranks = {_rank(g, backward) for g in given if not is_always_none(g, backward)}
        if len(ranks) == 1 and (rank := ranks.pop()) is not None:
            found[name] = rank
    return found


def _rank(node: ast.expr | None, backward: Method, depth: int = 0) -> int | None:
    """The dimensions, all of one entry, of what is a sum over everything; None for what is none."""
    match node:
        case ast.Name(id=name) if depth < DEEPEST:
            ranks = {_rank(bound, backward, depth + 1) for bound in backward.bindings.get(name, [])}
            return ranks.pop() if len(ranks) == 1 else None
        case ast.UnaryOp(operand=inner):
            return _rank(inner, backward, depth)
        case (
            ast.BinOp(left=inner, op=ast.Mult() | ast.Div(), right=ast.Constant())
            | ast.BinOp(left=ast.Constant(), op=ast.Mult(), right=inner)
        ):
            return _rank(inner, backward, depth)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr=attr), args=[_], keywords=[]):
            return 0 if attr in _SUMS else None
        case ast.Call(func=ast.Attribute(value=of, attr=attr), args=args, keywords=[]):
            return 0 if attr in _SUMS and not args else _shaped(_rank(of, backward, depth), attr, args)
        case _:
            return None


def _shaped(rank: int | None, method: str, arguments: Sequence[ast.expr]) -> int | None:
    """The dimensions after a method: those of ones that it names, or those that are not told."""
    if rank is None or method in _SHAPING:
        return rank
    sizes = {integer(a) for a in arguments}
    if method in {"view", "reshape"}:
        return len(arguments) if sizes == {1} else rank if None in sizes else None
    return rank + 1 if method == "unsqueeze" else None
