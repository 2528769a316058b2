"""What a method returns on each path, as far as the source says it with certainty."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from gradverify.source.method import Method
from gradverify.source.tree import is_none, name_of

_TENSOR_METHODS = frozenset(
    {"abs", "clamp", "clone", "contiguous", "cos", "div", "double", "exp", "expand", "expand_as"}
    | {"float", "half", "log", "matmul", "mean", "mm", "mul", "neg", "permute", "pow", "reshape", "sign"}
    | {"sin", "sum", "t", "tanh", "to", "transpose", "type_as", "unsqueeze", "view", "view_as", "zero_"}
)
"""Methods of a tensor that give one tensor."""
_TENSOR_OPERATORS = (ast.Mult, ast.Div, ast.MatMult, ast.Sub, ast.Pow)
"""Operators that, with a tensor on one side, give one tensor; `+` may join tuples."""


@dataclass(frozen=True)
class Returned:
    """One `return`, or one branch of a conditional one."""

    node: ast.Return
    values: tuple[ast.expr, ...] | None
    """What is returned, one by one; None where that is not known."""


def returned(method: Method) -> tuple[Returned, ...]:
    """Every path that returns, in source order."""
    return tuple(
        Returned(node, _values(expression, method))
        for node in method.nodes
        if isinstance(node, ast.Return)
        for expression in _branches(node.value or ast.Constant(None))
    )


def is_always_none(expression: ast.expr, method: Method) -> bool:
    """Whether an expression is certainly None: the literal, or a name that is bound to nothing else."""
    if isinstance(expression, ast.IfExp):
        return all(is_always_none(branch, method) for branch in _branches(expression))
    is_name = isinstance(expression, ast.Name)
    bound = method.bindings.get(name_of(expression), []) if is_name else [expression]
    return bool(bound) and all(map(is_none, bound))


def gives_gradient(method: Method) -> bool:
    """Whether some path returns something that is not certainly None."""
    return any(
        path.values is None or not all(is_always_none(value, method) for value in path.values)
        for path in returned(method)
    )


def _branches(expression: ast.expr) -> Iterator[ast.expr]:
    if isinstance(expression, ast.IfExp):
        yield from _branches(expression.body)
        yield from _branches(expression.orelse)
    else:
        yield expression


def _values(expression: ast.expr, method: Method) -> tuple[ast.expr, ...] | None:
    if is_none(expression) or is_tensor(expression, _gradients_given(method)):
        return (expression,)
    return _display(expression, method)


def _gradients_given(method: Method) -> frozenset[str]:
    """The parameters after ctx that stay one tensor whatever they are bound to on the way."""
    given = frozenset(method.parameters[1:])
    return frozenset(
        name for name in given if all(is_tensor(value, given) for value in method.bindings.get(name, []))
    )


def _display(
    expression: ast.expr | None, method: Method, *, starred: bool = False
) -> tuple[ast.expr, ...] | None:
    """The entries of a tuple that is written out, also as a sum, a multiple or a local name.

    What stands behind a star may be a list, too.
    """
    parts: list[tuple[ast.expr, ...] | None] = [None]
    match expression:
        case ast.List() if not starred:
            pass
        case ast.Tuple(elts=entries) | ast.List(elts=entries):
            parts = [_entry(entry, method) for entry in entries]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            parts = [_display(left, method), _display(right, method)]
        case ast.BinOp(left=left, op=ast.Mult(), right=ast.Constant(value=int(times))):
            parts = [_display(left, method, starred=starred)] * times
        case ast.Name(id=name) if name not in method.parameters:
            bound = method.bindings.get(name, [])
            if len(bound) == 1 and not isinstance(bound[0], ast.Name):
                parts = [_display(bound[0], method)]
        case _:
            pass
    known = [part for part in parts if part is not None]
    return sum(known, ()) if len(known) == len(parts) else None


def _entry(entry: ast.expr, method: Method) -> tuple[ast.expr, ...] | None:
    """What one entry of a tuple holds; several for `*[grad]` and `*[None] * 3`."""
    if not isinstance(entry, ast.Starred):
        return (entry,)
    return None if isinstance(entry.value, ast.Name) else _display(entry.value, method, starred=True)


def is_tensor(expression: ast.expr | None, tensors: frozenset[str]) -> bool:
    """Whether an expression is certainly one tensor, given names that are."""
    match expression:
        case ast.Name(id=name):
            return name in tensors
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return is_tensor(operand, tensors)
        case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _TENSOR_OPERATORS):
            return is_tensor(left, tensors) or is_tensor(right, tensors)
        case ast.Call(func=ast.Attribute(value=value, attr=attr)):
            return attr in _TENSOR_METHODS and is_tensor(value, tensors)
        case _:
            return False
