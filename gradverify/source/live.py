"""Live functions by their source, with the helpers that they call by name: loops, and paths for signs.

Whether backward multiplies or divides by a size: then inputs whose sizes agree say nothing for it.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from types import FunctionType
from typing import Any

from gradverify.source.tree import (
    ORDERING,
    called_name,
    dotted,
    each,
    name_of,
    names_in,
    rounds_of,
)

KEPT_DEFINITIONS = 128
"""Functions whose trees are kept: those of one target, and the helpers that they call."""


def definition(function: Any) -> ast.FunctionDef | None:  # noqa: ANN401 - whatever the user's is
    """The tree of a live function, without what decorators put around it; it must not be changed.

    Lines count from 1 at its first decorator. None where the source cannot be had.
    """
    try:
        plain = inspect.unwrap(function)
        read = _definition if isinstance(plain, FunctionType) else _definition.__wrapped__
        return read(plain)
    except (OSError, TypeError, SyntaxError, ValueError):
        return None


@lru_cache(maxsize=KEPT_DEFINITIONS)
def _definition(source: Any) -> ast.FunctionDef | None:  # noqa: ANN401
    with warnings.catch_warnings(action="ignore"):
        tree = ast.parse(textwrap.dedent(inspect.getsource(source)))
    return next(each(ast.FunctionDef, tree), None)


def definitions_behind(function: Any) -> Iterator[tuple[ast.FunctionDef, Mapping[str, Any]]]:  # noqa: ANN401
    """The definition of a live function and of those that it calls by name, with the names known there."""
    own = definition(function)
    if own is None:
        return
    known = getattr(function, "__globals__", {})
    yield own, known
    for name in _names_called_in(own):
        helper = known.get(name)
        inner = definition(helper) if isinstance(helper, FunctionType) and helper is not function else None
        if inner is not None:
            yield inner, helper.__globals__  # type: ignore[union-attr]


@lru_cache(maxsize=KEPT_DEFINITIONS)
def _names_called_in(body: ast.FunctionDef) -> Sequence[str]:
    return sorted({name_of(call.func) for call in each(ast.Call, body)})


def _nodes_behind(function: Any) -> Iterator[ast.AST]:  # noqa: ANN401
    return (node for body, _ in definitions_behind(function) for node in ast.walk(body))


def iterates(function: Any) -> bool:  # noqa: ANN401
    """Whether a live function, or a helper of it, repeats a step until it converges, as Newton's."""
    return any(_repeats(body) for body, _ in definitions_behind(function))


@lru_cache(maxsize=KEPT_DEFINITIONS)
def _repeats(body: ast.FunctionDef) -> bool:
    return any(isinstance(node, ast.While) or rounds_of(node) is not None for node in ast.walk(body))


_OF_SIGNS = re.compile(r"abs|sign|sgn|where|masked|lu_?$|clamp|clip|max|min|heaviside|thresh|shrink|hard")
"""Calls whose result may hang on the sign of a value."""


def asks_for_signs(function: Any) -> bool:  # noqa: ANN401 - a forward or backward of a user
    """Whether a live function, or a helper, may compare values, or take another path for negative ones."""
    return any(
        (isinstance(n, ast.Compare) and any(isinstance(o, ORDERING) for o in n.ops))
        or (isinstance(n, ast.Call) and _OF_SIGNS.search(called_name(n)) is not None)
        for n in _nodes_behind(function)
    )


def names_called(function: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:  # noqa: ANN401
    """The dotted names that a live function and its helpers call, with the names known there."""
    for node, known in definitions_behind(function):
        called = (dotted(call.func, {}) for call in each(ast.Call, node))
        yield from ((name, known) for name in called if name)


def may_loop_over(forward: Any, backward: Any, name: str) -> bool:  # noqa: ANN401
    """Whether forward hands a parameter to a loop, or to a function that may have one; True if unknown.

    Or backward what forward keeps of it on ctx.
    """
    body, after = definition(forward), definition(backward)
    if body is None:
        return True
    bound = [pair for pair in _assigned(body) if name in names_in(pair[1])]
    kept = {f".{target.attr}" for target, _ in bound if isinstance(target, ast.Attribute)}
    return _may_loop(body, {name}) or (after is not None and _may_loop(after, kept))


def _assigned(body: ast.FunctionDef) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What is bound and to what, also in `a, b = c, d`."""
    for node in each(ast.Assign, body):
        for target in node.targets:
            match target, node.value:
                case ast.Tuple(elts=targets), ast.Tuple(elts=values):
                    yield from zip(targets, values, strict=False)
                case _:
                    yield target, node.value


def _may_loop(body: ast.FunctionDef, names: Collection[str]) -> bool:
    """Whether some names, or others for what they hold, are handed to a function or end a loop."""
    bound = [pair for pair in _assigned(body) if not isinstance(pair[1], ast.Call) and _holds(pair[1], names)]
    names = {*names, *(target.id for target, _ in bound if isinstance(target, ast.Name))}
    calls = (a for call in each(ast.Call, body) if isinstance(call.func, ast.Name) for a in _arguments(call))
    return any(_holds(a, names) for a in (*calls, *(node.test for node in each(ast.While, body))))


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _holds(tree: ast.AST, names: Collection[str]) -> bool:
    """Whether a tree has one of some names: of a variable, or `.name` of an attribute."""
    attributes = (f".{node.attr}" for node in each(ast.Attribute, tree))
    return not names_in(tree).union(attributes).isdisjoint(names)


COUNTING = frozenset({"len", "mean", "nanmean", "var", "std", "var_mean", "std_mean", "numel", "nelement"})
"""Calls whose result is a size, or goes by one."""

SCALING = (ast.Mult, ast.Div, ast.FloorDiv, ast.Pow)
"""What makes a factor of a size. One that is added to is the end of a range of places."""

_PLAIN = frozenset({"float", "int", "sqrt", "tensor", "max", "min", "abs"})
"""Calls that make a number of a number: what goes into others is a shape, or a bound."""

_OF_CTX = frozenset({"saved_tensors", "saved_variables", "needs_input_grad"})
"""Attributes of the ctx that hold no number."""


def scales_by_sizes(backward: Any) -> bool:  # noqa: ANN401 - the user's
    """Whether a size is a factor or a divisor in backward, or in what it calls by name."""
    behind = (body for body, _ in definitions_behind(backward))
    return any(_scales(node, _sizes(body)) for body in behind for node in ast.walk(body))


def _scales(node: ast.AST, sizes: frozenset[str]) -> bool:
    match node:
        case ast.Call():
            return called_name(node) in COUNTING
        case ast.BinOp(left=left, right=right, op=op) | ast.AugAssign(target=left, value=right, op=op):
            return isinstance(op, SCALING) and any(_holds_size(o, sizes) for o in (left, right))
        case _:
            return False


def _holds_size(node: ast.expr, sizes: frozenset[str]) -> bool:
    """Whether an operand is a size, or a number that is made of one."""
    match node:
        case ast.Call(args=parts) if called_name(node) in _PLAIN:
            pass
        case ast.UnaryOp(operand=operand):
            parts = [operand]
        case ast.BinOp(left=left, right=right):
            parts = [left, right]
        case _:
            parts = []
    return name_of(node) in sizes or _is_size(node) or any(_holds_size(part, sizes) for part in parts)


def _sizes(body: ast.FunctionDef) -> frozenset[str]:
    """Local names that are given a size, or several."""
    given = (node for node in each(ast.Assign, body) if _is_size(node.value))
    return frozenset(name for node in given for t in node.targets for name in names_in(t))


def _is_size(node: ast.expr) -> bool:
    """`x.shape`, `x.shape[0]`, `x.size(0)`, and what was kept on the ctx as a number, or may have been."""
    match node:
        case ast.Attribute(attr="shape") | ast.Call(func=ast.Attribute(attr="size")):
            return True
        case ast.Attribute(value=ast.Name(id="ctx" | "self"), attr=name):
            return name not in _OF_CTX
        case ast.Subscript(value=value) | ast.Call(func=ast.Name(id="float" | "int"), args=[value]):
            return _is_size(value)
        case _:
            return False
