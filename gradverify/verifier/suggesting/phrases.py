"""Pieces of Python as text, each with how strongly its outermost operator binds."""

from __future__ import annotations

import ast
import math
from typing import Any

BINARY = {
    "add": ("+", 4),
    "sub": ("-", 4),
    "mul": ("*", 5),
    "div": ("/", 5),
    "pow": ("**", 7),
    "mm": ("@", 5),
    "bmm": ("@", 5),
    "mv": ("@", 5),
    "matmul": ("@", 5),
    "dot": ("@", 5),
    "eq": ("==", 1),
    "ne": ("!=", 1),
    "gt": (">", 1),
    "ge": (">=", 1),
    "lt": ("<", 1),
    "le": ("<=", 1),
    "logical_and": ("&", 3),
    "logical_or": ("|", 2),
    "bitwise_and": ("&", 3),
    "bitwise_or": ("|", 2),
}
"""Operators with how strongly they bind."""

ASSOCIATIVE = frozenset({"add", "mul", "logical_and", "logical_or"})
ATOM, NEGATED, POWER = 9, 6, 7


def number(value: Any) -> str:  # noqa: ANN401
    """A number as a person writes it: 2 and not 2.0."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e6:
        return str(int(value))
    return repr(value)


def inside(argument: Any, strength: int) -> str:  # noqa: ANN401
    """In brackets where it binds less than this."""
    text, own = argument
    return text if own >= strength else f"({text})"


def plain(argument: Any) -> str:  # noqa: ANN401
    """An argument of a call."""
    if isinstance(argument, list):
        inside = ", ".join(plain(a) for a in argument)
        return f"({inside}{',' if len(argument) == 1 else ''})"
    return str(argument[0])


def strength(text: str) -> int:
    """How strongly the outermost operator of a text binds."""
    tree = ast.parse(text, mode="eval").body
    if isinstance(tree, ast.UnaryOp):
        return NEGATED
    if not isinstance(tree, ast.BinOp) or (text[0] == "(" and _closes(text) == len(text) - 1):
        return ATOM
    if isinstance(tree.op, ast.Pow):
        return POWER
    return BINARY["add" if isinstance(tree.op, ast.Add | ast.Sub) else "mul"][1]


def _closes(text: str) -> int:
    """Where the bracket closes that a text begins with."""
    depth = 0
    for k, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if not depth:
            return k
    return -1


def without_brackets(text: str) -> str:
    """What stands in the brackets around a tuple."""
    bracketed = text.startswith("(") and _closes(text) == len(text) - 1
    return text[1:-1].rstrip(",") if bracketed else text


def indices(found: list[Any]) -> str:
    """What stands in square brackets."""
    return ", ".join(":" if i[0] == "None" else i[0] for i in found)
