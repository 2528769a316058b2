"""Whether backward multiplies or divides by a size: then inputs whose sizes agree say nothing for it."""

from __future__ import annotations

import ast
from typing import Any

from gradverify.source.live import definitions_behind
from gradverify.source.tree import called_name, each, names_in

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


def _holds_size(node: ast.AST, sizes: frozenset[str]) -> bool:
    """Whether an operand is a size, or a number that is made of one."""
    match node:
        case ast.Name(id=name) if name in sizes:
            return True
        case ast.expr() if _is_size(node):
            return True
        case ast.Call(args=parts) if called_name(node) in _PLAIN:
            return any(_holds_size(part, sizes) for part in parts)
        case ast.UnaryOp(operand=operand):
            return _holds_size(operand, sizes)
        case ast.BinOp(left=left, right=right):
            return _holds_size(left, sizes) or _holds_size(right, sizes)
        case _:
            return False


def _sizes(body: ast.FunctionDef) -> frozenset[str]:
    """Local names that are given a size, or several."""
    given = (node for node in each(ast.Assign, body) if _is_size(node.value))
    return frozenset(name for node in given for t in node.targets for name in names_in(t))


def _is_size(node: ast.expr) -> bool:
    """`x.shape`, `x.shape[0]`, `x.size(0)`, and what was kept on the ctx as a number, or may have been."""
    match node:
        case ast.Attribute(attr="shape"):
            return True
        case ast.Attribute(value=ast.Name(id="ctx" | "self"), attr=name):
            return name not in _OF_CTX
        case ast.Subscript(value=value) | ast.Call(func=ast.Name(id="float" | "int"), args=[value]):
            return _is_size(value)
        case ast.Call(func=ast.Attribute(attr="size")):
            return True
        case _:
            return False
