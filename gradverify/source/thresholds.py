"""Numbers in the source of a target that its values may be held against: comparisons and clamps.

A window between the threshold of forward and another one in backward is narrow: values drawn over a wide
range seldom lie in it, and those beside a number that is written down do.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from gradverify.source.module import module_of
from gradverify.source.tree import assigned, called_name

CLAMPS = frozenset({"clamp", "clip", "clamp_", "clip_", "clamp_min", "clamp_max", "hardtanh", "threshold"})
"""Calls whose numbers bound values."""

_ORDERED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def thresholds(source: str, attribute: str) -> tuple[float, ...]:
    """The numbers, none of them zero, each once; empty where the source cannot be read.

    Those of backward come first: another threshold than forward's is a mistake there. A constant of the
    module is its number. `attribute` is how the module calls the target.
    """
    statements = [*module_of(source).behind(attribute)]
    given = filter(None, map(assigned, statements))
    constants = {name: number for name, value in given if (number := _number(value, {})) is not None}
    found: list[float] = []
    for statement in statements:
        methods = statement.body if isinstance(statement, ast.ClassDef) else [statement]
        backward = [m for m in methods if isinstance(m, ast.FunctionDef) and m.name == "backward"]
        for part in (*backward, *(m for m in methods if m not in backward)):
            found += (number for node in ast.walk(part) for number in _of(node, constants))
    return tuple(dict.fromkeys(number for number in found if number))


def _of(node: ast.AST, constants: Mapping[str, float]) -> Iterator[float]:
    if isinstance(node, ast.Compare) and any(isinstance(op, _ORDERED) for op in node.ops):
        held = [node.left, *node.comparators]
    elif called_name(node) in CLAMPS and isinstance(node, ast.Call):
        held = [*node.args, *(keyword.value for keyword in node.keywords)]
    else:
        return
    yield from (number for one in held if (number := _number(one, constants)) is not None)


def _number(node: ast.expr, constants: Mapping[str, float]) -> float | None:
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            positive = _number(operand, constants)
            return None if positive is None else -positive
        case ast.Constant(value=bool()):
            return None
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.Name(id=name):
            return constants.get(name)
        case _:
            return None
