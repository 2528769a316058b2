"""The user's own functions of one tensor, such as a conjugate of quaternions: one too many, or one lost."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence
from types import FunctionType

from torch import Tensor

from gradverify.verifier.numerics.diagnosis.edits.edit import Edit
from gradverify.verifier.numerics.diagnosis.edits.harmless import computes, resolved
from gradverify.verifier.numerics.diagnosis.edits.known import Value
from gradverify.verifier.numerics.diagnosis.edits.source import Slot, Source

MOST_FUNCTIONS = 4
"""Functions that are tried around every value."""


def own_functions(source: Source, forward: Sequence[Source]) -> list[ast.expr]:
    """What backward or forward call of the user's module with one argument, as they name it."""
    found: dict[str, ast.expr] = {}
    for one in (source, *forward):
        for node in ast.walk(one.whole):
            if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
                continue
            function = resolved(node.func, one.function)
            is_users = (
                isinstance(function, FunctionType) and function.__globals__ is source.function.__globals__
            )
            if is_users and resolved(node.func, source.function) is function and computes(function, 0):
                found.setdefault(ast.unparse(node.func), node.func)
    return [*found.values()][:MOST_FUNCTIONS]


def of_own_functions(slot: Slot, value: Value, functions: Sequence[ast.expr]) -> Iterator[Edit]:
    """With one of them around what stands there, or without the one that does."""
    node = slot.node
    if not isinstance(value, Tensor) or not isinstance(node, ast.expr):
        return
    called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    for function in functions:
        name = ast.unparse(function)
        if called == name and isinstance(node, ast.Call):
            yield Edit(slot, node.args[0], "operand")
        elif not _is_within(slot, name):
            yield Edit(slot, ast.Call(copy.deepcopy(function), [node], []), "operand")


def _is_within(slot: Slot, name: str) -> bool:
    """Whether it is an argument of the same function already."""
    return isinstance(slot.parent, ast.Call) and ast.unparse(slot.parent.func) == name
