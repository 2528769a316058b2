"""What a method returns on each path, as far as the source says it with certainty."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradverify.source.function import Function
from gradverify.source.method import Method
from gradverify.source.tree import Place, is_none

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

    @property
    def place(self) -> Place:
        """Where it stands."""
        return Place.of(self.node)


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
    if isinstance(expression, ast.Name):
        bound = method.bindings.get(expression.id, [])
        return bool(bound) and all(b is not None and is_none(b) for b in bound)
    if isinstance(expression, ast.IfExp):
        return is_always_none(expression.body, method) and is_always_none(expression.orelse, method)
    return is_none(expression)


def differentiated(function: Function) -> frozenset[str]:
    """Forward's parameters that get a gradient on some path; empty where any path cannot be read."""
    backward = function.backward
    if backward is None or function.forward is None or function.forward.variadic:
        return frozenset()
    paths = returned(backward)
    if not paths or any(path.values is None for path in paths):
        return frozenset()
    return frozenset(
        name
        for position, name in enumerate(function.inputs)
        for path in paths
        if path.values is not None
        and position < len(path.values)
        and not is_always_none(path.values[position], backward)
    )


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
        name
        for name in given
        if all(b is not None and is_tensor(b, given) for b in method.bindings.get(name, []))
    )


def _display(expression: ast.expr, method: Method) -> tuple[ast.expr, ...] | None:
    """The entries of a tuple that is written out, also as a sum, a multiple or a local name."""
    match expression:
        case ast.Tuple(elts=entries):
            return _entries(entries, method)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, second = _display(left, method), _display(right, method)
            return first + second if first is not None and second is not None else None
        case ast.BinOp(left=left, op=ast.Mult(), right=ast.Constant(value=int(times))):
            repeated = _display(left, method)
            return repeated * times if repeated is not None else None
        case ast.Name(id=name) if name not in method.parameters:
            bound = method.bindings.get(name, [])
            only = bound[0] if len(bound) == 1 else None
            return _display(only, method) if only is not None and not isinstance(only, ast.Name) else None
        case _:
            return None


def _entries(entries: Sequence[ast.expr], method: Method) -> tuple[ast.expr, ...] | None:
    parts = [_entry(entry, method) for entry in entries]
    known = [part for part in parts if part is not None]
    return sum(known, ()) if len(known) == len(parts) else None


def _entry(entry: ast.expr, method: Method) -> tuple[ast.expr, ...] | None:
    """What one entry of a tuple holds; several for `*[grad]` and `*[None] * 3`."""
    if not isinstance(entry, ast.Starred):
        return (entry,)
    match entry.value:
        case ast.List(elts=elements):
            return _entries(elements, method)
        case ast.BinOp(left=ast.List(elts=elements), op=ast.Mult(), right=ast.Constant(value=int(times))):
            repeated = _entries(elements, method)
            return repeated * times if repeated is not None else None
        case ast.Name():
            return None
        case inner:
            return _display(inner, method)


def is_tensor(expression: ast.expr, tensors: frozenset[str]) -> bool:
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
