"""Whether an integer counts entries, groups or parts, and not the rounds of a loop.

A backward may be the derivative of what many rounds converge to: with too few of them it is right, and looks
wrong, whatever their number. So a count is tried otherwise only where forward uses it in torch's own calls,
in indices and in arithmetic.
"""

from __future__ import annotations

import ast
from typing import Any

from gradverify.source import definition


def is_plain_count(function: Any, name: str) -> bool:  # noqa: ANN401 - the user's class
    """Whether forward hands a parameter to no loop, and to no function that may have one."""
    body = definition(getattr(function, "forward", None))
    if body is None:
        return False
    return not any(_may_loop(node, name) for node in ast.walk(body))


def _may_loop(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Call(func=ast.Name(), args=args, keywords=keywords):
            return any(_names(a, name) for a in (*args, *(k.value for k in keywords)))
        case ast.While(test=test):
            return _names(test, name)
        case ast.Assign(targets=[ast.Name()], value=value):
            return _names(value, name) and not isinstance(value, ast.Call)  # another name of it
        case _:
            return False


def _names(node: ast.AST, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(node))
