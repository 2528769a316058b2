"""GV807: `save_for_backward` where it has no effect, twice, or with what is no tensor."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from gradverify.lint.alarm import Alarm, Source
from gradverify.lint.context import calls
from gradverify.lint.functions import FunctionClass, Method
from gradverify.lint.walking import blocks

_NO_TENSOR = (ast.List, ast.Tuple, ast.Dict, ast.Set, ast.ListComp, ast.JoinedStr)


def check(function: FunctionClass, source: Source) -> Iterator[Alarm]:  # noqa: ARG001
    """Look at every call of save_for_backward on its own, then at those that follow one another."""
    backward = function.backward
    if backward is not None:
        for call in calls(backward, "save_for_backward"):
            yield Alarm(
                "GV807",
                call,
                f"{backward.name} calls save_for_backward: nothing reads what it saves",
                "Save tensors in forward or setup_context.",
            )
    for method in function.saving:
        for call in calls(method, "save_for_backward"):
            yield from _no_tensors(call)
        for block in blocks(method.node.body):
            yield from _repeated(block, method)


def _no_tensors(call: ast.Call) -> Iterator[Alarm]:
    for argument in call.args:
        literal = isinstance(argument, ast.Constant) and argument.value is not None
        shape = isinstance(argument, ast.Attribute) and argument.attr in {"shape", "dtype", "device"}
        if literal or shape or isinstance(argument, _NO_TENSOR):
            yield Alarm(
                "GV807",
                argument,
                f"save_for_backward takes tensors and None, not `{_shown(argument)}`: it raises TypeError",
                "Keep what is no tensor as an attribute of ctx; give several tensors as several arguments.",
            )


def _shown(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _repeated(block: Sequence[ast.stmt], method: Method) -> Iterator[Alarm]:
    """Two calls in one list of statements: nothing lies between them that could skip the second."""
    found = {id(call) for call in calls(method, "save_for_backward")}
    first = 0
    for statement in block:
        if isinstance(statement, ast.Expr) and id(statement.value) in found:
            if first:
                yield Alarm(
                    "GV807",
                    statement,
                    f"this save_for_backward replaces the one on line {first}: its tensors are lost",
                    "Save all tensors in one call.",
                )
            first = statement.lineno
