"""Whether a size is a factor or a divisor in backward: then inputs of agreeing sizes do not show it right."""

from __future__ import annotations

import ast
from typing import Any

from gradverify.source import called_name, definitions_behind

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
    return any(
        _scales(node, _sizes(body)) for body, _ in definitions_behind(backward) for node in ast.walk(body)
    )


def _scales(node: ast.AST, sizes: frozenset[str]) -> bool:
    match node:
        case ast.Call():
            return called_name(node) in COUNTING
        case ast.BinOp(left=left, right=right, op=op) | ast.AugAssign(target=left, value=right, op=op):
            return isinstance(op, SCALING) and (_is_of_size(left, sizes) or _is_of_size(right, sizes))
        case _:
            return False


def _sizes(body: ast.FunctionDef) -> frozenset[str]:
    """Local names that are given a size, or several."""
    given = [n for n in ast.walk(body) if isinstance(n, ast.Assign) and _is_of_size(n.value, frozenset())]
    return frozenset(n.id for a in given for t in a.targets for n in ast.walk(t) if isinstance(n, ast.Name))


def _is_of_size(node: ast.AST, sizes: frozenset[str]) -> bool:
    """Whether an expression is a size or made of one: `x.shape[0]`, `n - 1`, what ctx keeps as a number."""
    match node:
        case ast.Name(id=name):
            return name in sizes
        case ast.Attribute(value=ast.Name(id="ctx" | "self"), attr=name):
            return name not in _OF_CTX
        case ast.Attribute(attr=name):
            return name == "shape"
        case ast.Call(func=ast.Attribute(attr="size")):
            return True
        case ast.Subscript(value=value) | ast.UnaryOp(operand=value):
            parts = [value]
        case ast.BinOp(left=left, right=right):
            parts = [left, right]
        case _:
            parts = node.args if isinstance(node, ast.Call) and called_name(node) in _PLAIN else []
    return any(_is_of_size(part, sizes) for part in parts)
