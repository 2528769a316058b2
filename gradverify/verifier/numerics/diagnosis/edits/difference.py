"""Which mistake two expressions differ by: one is made of the other, or they differ in one part."""

from __future__ import annotations

import ast

from gradverify.verifier.numerics.diagnosis.edits.calls import DROPPED_CALLS, TWINS, is_module

OF_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "missing-term",
    ast.Sub: "missing-term",
    ast.Mult: "chain-factor",
    ast.Div: "chain-factor",
    ast.BitAnd: "branch",
    ast.BitOr: "branch",
}
"""The cause where such an operation with a value is left out, or is one too many."""

OF_CALLS = {**DROPPED_CALLS, "where": "branch", "masked_fill": "branch", "masked_fill_": "branch"}
"""The cause where a call of such a function is."""


SHORTER = frozenset({"float", "half", "bfloat16", "float32", "float16", "complex64", "cfloat", "chalf"})
"""Methods and dtypes by which numbers lose digits."""


def is_shortened(expression: ast.expr) -> bool:
    """Whether something in an expression is made of a dtype with fewer digits."""
    return any(isinstance(node, ast.Attribute) and node.attr in SHORTER for node in ast.walk(expression))


def difference(one: ast.expr, other: ast.expr) -> str:
    """The cause where one expression stands for the other; empty where that cannot be told."""
    if ast.unparse(one) == ast.unparse(other):
        return ""
    found = made_of(one, ast.unparse(other)) or made_of(other, ast.unparse(one))
    return found or _in_one_part(one, other)


def made_of(expression: ast.expr, text: str) -> str:
    """The cause where an expression stands for one that it is made of by one operation; empty otherwise."""
    match expression:
        case ast.BinOp(left=left, op=op, right=right) if text in {ast.unparse(left), ast.unparse(right)}:
            return OF_OPERATORS.get(type(op), "")
        case ast.UnaryOp(op=ast.USub(), operand=operand) if ast.unparse(operand) == text:
            return "missing-term"
        case ast.Call(func=ast.Attribute(value=owner, attr=name), args=arguments):
            own = arguments if is_module(owner) else [owner, *arguments]
            return OF_CALLS.get(name, "") if text in map(ast.unparse, own) else ""
        case ast.Attribute(value=owner, attr="mT" | "T" | "mH") if ast.unparse(owner) == text:
            return "transposed"
        case _:
            return ""


def _in_one_part(one: ast.expr, other: ast.expr) -> str:
    match one, other:
        case ast.BinOp(op=op), ast.BinOp(op=other_op):
            operands = [one.left, one.right], [other.left, other.right]
            if type(op) is type(other_op):
                return _of_parts(*operands)
            same = [*map(ast.unparse, operands[0])] == [*map(ast.unparse, operands[1])]
            return OF_OPERATORS.get(type(op), "") if same else ""
        case ast.UnaryOp(op=op), ast.UnaryOp(op=other_op) if type(op) is type(other_op):
            return difference(one.operand, other.operand)
        case ast.Call(func=ast.Attribute()), ast.Call(func=ast.Attribute()):
            return _of_calls(one, other)
        case _:
            return "branch" if isinstance(one, ast.Compare) and isinstance(other, ast.Compare) else ""


def _of_calls(one: ast.Call, other: ast.Call) -> str:
    func, other_func = one.func, other.func
    if not isinstance(func, ast.Attribute) or not isinstance(other_func, ast.Attribute):
        return ""
    if func.attr != other_func.attr:
        return dict(TWINS.get(func.attr, ())).get(other_func.attr, "")
    if len(one.args) != len(other.args) or len(one.keywords) != len(other.keywords):
        return ""
    return _of_parts([func.value, *one.args], [other_func.value, *other.args])


def _of_parts(ones: list[ast.expr], others: list[ast.expr]) -> str:
    differing = [(a, b) for a, b in zip(ones, others, strict=True) if ast.unparse(a) != ast.unparse(b)]
    return difference(*differing[0]) if len(differing) == 1 else ""
