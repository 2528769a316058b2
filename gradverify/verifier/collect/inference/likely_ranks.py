"""How many dimensions the author's own way of writing says that an input has.

`scale[:, None, None]` and `scale.view(1, -1, 1, 1)` are of a vector, `grad.sum((0, 2, 3))` is of images.
Nothing forbids other numbers of dimensions there, and forward often runs at them, but backward does not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from gradverify.verifier.collect.inference.uses import called_name, is_none

LEAST_NEW = 2
"""New dimensions from which a subscript says how many there were: `x[:, None]` is of rows as well."""

OF_AXES = frozenset(
    {"sum", "mean", "var", "std", "amax", "amin", "prod", "softmax", "log_softmax", "logsumexp", "cumsum"}
    | {"flip", "transpose", "swapaxes", "any", "all", "cumprod", "argmax", "argmin"}
)
"""Methods whose bare arguments are axes of what they are called on."""

MOST_DIMENSIONS = 5
"""A number beyond is no axis."""


def likely_ranks(
    forward: ast.FunctionDef,
    names: Mapping[str, str],
    backward: ast.FunctionDef | None,
    saved: Mapping[str, str],
) -> dict[str, int]:
    """Parameters with the number of dimensions that the source speaks of, by name.

    `names` are the parameters by their names in forward, `saved` by those that backward gives them.
    """
    found: dict[str, int] = {}
    for body, known in ((forward, names), (backward, saved)):
        for name, rank in _broadcast(body) if body is not None else ():
            if name in known:
                found.setdefault(known[name], rank)
    return found


def rank_of_outputs(backward: ast.FunctionDef) -> int:
    """The least number of dimensions that the axes demand along which backward goes through grad_output."""
    grads = {a.arg for a in backward.args.args[1:]}
    return max((axis for node in ast.walk(backward) for axis in _axes(node, grads)), default=0)


def _broadcast(body: ast.FunctionDef) -> Iterator[tuple[str, int]]:
    """(name, dimensions) of what gets new dimensions at both ends, or several of them."""
    for node in ast.walk(body):
        match node:
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Tuple(elts=entries)):
                new = sum(is_none(e) for e in entries)
                whole = sum(_is_whole(e) for e in entries)
                if new >= LEAST_NEW and whole and new + whole == len(entries) and is_none(entries[-1]):
                    yield name, whole
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="view" | "reshape"), args=sizes):
                if _is_of_a_vector(sizes):
                    yield name, 1
            case _:
                pass


def _is_whole(entry: ast.expr) -> bool:
    return isinstance(entry, ast.Slice) and entry.lower is None and entry.upper is None


def _is_of_a_vector(sizes: Sequence[ast.expr]) -> bool:
    """`view(1, -1, 1)`, `view(1, c, 1, 1)` and `view(-1, *[1] * k)`: one size among ones."""
    ones = sum(isinstance(s, ast.Constant) and s.value == 1 for s in sizes)
    starred = sum(isinstance(s, ast.Starred) for s in sizes)
    inferred = any(isinstance(s, ast.UnaryOp) for s in sizes)
    return len(sizes) - ones - starred == 1 and (starred == 1 or ones >= (1 if inferred else LEAST_NEW))


def _axes(node: ast.AST, grads: set[str]) -> Iterator[int]:
    """How many dimensions the axes of a call on grad_output, or on a product with it, take at least."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return
    if called_name(node) not in OF_AXES or not _is_as_deep(node.func.value, grads):
        return
    named = [k.value for k in node.keywords if k.arg in {"dim", "axis"}]
    for argument in (*node.args, *named):
        entries = argument.elts if isinstance(argument, ast.Tuple | ast.List) else [argument]
        for entry in entries:
            match entry:
                case ast.Constant(value=int() as axis) if type(axis) is int and axis < MOST_DIMENSIONS:
                    yield axis + 1
                case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as axis)):
                    yield axis
                case _:
                    pass


def _is_as_deep(value: ast.expr, grads: set[str]) -> bool:
    """Whether it is a gradient, or arithmetic on one that gives it no further dimensions."""
    parts = list(ast.walk(value))
    plain = not any(isinstance(p, ast.Call | ast.Subscript | ast.MatMult) for p in parts)
    return plain and any(isinstance(p, ast.Name) and p.id in grads for p in parts)
