"""What the names in a helper's source are in forward: followed through the calls of a traceback."""

from __future__ import annotations

import ast
import itertools
import linecache
from collections.abc import Mapping, Sequence
from functools import cache

from gradverify.model import Frame

KEEPING_SHAPE = frozenset(
    {"clone", "contiguous", "cpu", "cuda", "detach", "double", "float", "half", "long", "numpy", "to"}
    | {"requires_grad_", "type_as"}
)
"""Methods whose result has the shape of what they are called on."""


def function_around(frame: Frame) -> ast.FunctionDef | None:
    """The innermost function that holds a frame's line; None where its source is not to be had."""
    return _around(frame.file, frame.line)


@cache
def _around(file: str, line: int) -> ast.FunctionDef | None:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None
    holding = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(holding, key=lambda node: node.lineno, default=None)


def names_in_forward(frames: Sequence[Frame], parameters: Sequence[str]) -> Mapping[str, str]:
    """Parameters of the innermost function by what forward calls what they were given.

    `frames` come outermost first, `parameters` are forward's own.
    """
    known = {name: name for name in parameters}
    for outer, inner in itertools.pairwise(frames):
        calling, called = function_around(outer), function_around(inner)
        known = {} if calling is None or called is None else _passed_on(calling, outer.line, called, known)
    return known


def _passed_on(
    calling: ast.FunctionDef, line: int, called: ast.FunctionDef, known: Mapping[str, str]
) -> dict[str, str]:
    for node in ast.walk(calling):
        if not isinstance(node, ast.Call) or not node.lineno <= line <= (node.end_lineno or node.lineno):
            continue
        if isinstance(node.func, ast.Name) and node.func.id == called.name:
            taken = [a.arg for a in (*called.args.posonlyargs, *called.args.args)]
            given = [*zip(taken, node.args, strict=False), *((k.arg, k.value) for k in node.keywords)]
            named = ((name, name_behind(value)) for name, value in given if name is not None)
            return {name: known[value] for name, value in named if value in known}
    return {}


def name_behind(value: ast.expr) -> str:
    """The tensor whose shape an argument has; empty where it is none that is known."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if value.func.attr not in KEEPING_SHAPE:
            return ""
        value = value.func.value
    return value.id if isinstance(value, ast.Name) else ""


class Renamed(ast.NodeTransformer):
    """An expression of a helper in forward's names."""

    def __init__(self, names: Mapping[str, str]) -> None:
        """`names` gives forward's name for one of the helper's."""
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """Rename what is known; the rest keeps its name, as helpers often name things as forward does."""
        return ast.copy_location(ast.Name(self._names.get(node.id, node.id), node.ctx), node)
