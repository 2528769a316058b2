"""What a number in backward's source is for: a value, an index, a dimension, a loop's bound."""

from __future__ import annotations

import ast

from gradverify.verifier.numerics.diagnosis.edits.operators import Role
from gradverify.verifier.numerics.diagnosis.edits.scene import Scene
from gradverify.verifier.numerics.diagnosis.edits.source import Slot

REDUCTIONS = frozenset(
    {
        "sum",
        "mean",
        "amax",
        "amin",
        "prod",
        "softmax",
        "log_softmax",
        "logsumexp",
        "norm",
        "var",
        "std",
        "cumsum",
    }
)
"""Functions along a dimension."""


def role_of(slot: Slot, scene: Scene) -> Role:
    """Whether a number there is an index in the brackets behind a value, a dimension, or a loop's bound."""
    node: ast.AST | None = slot.node if isinstance(slot.node, ast.AST) else None
    while node is not None and not isinstance(node, ast.stmt):
        around = scene.parents.get(id(node))
        if not isinstance(around, ast.UnaryOp | ast.BinOp | ast.Tuple):
            return _within(node, around, scene)
        node = around
    return Role.VALUE


def _within(node: ast.AST, around: ast.AST | None, scene: Scene) -> Role:
    match around:
        case ast.Subscript(slice=part) if part is node:
            return Role.INDEX
        case ast.Slice():
            return Role.PLACES
        case ast.keyword(arg="dim" | "axis"):
            return Role.DIM
        case ast.Call(func=ast.Name(id="range")):
            return _of_loop(around, scene)
        case ast.Call(func=ast.Attribute(attr=name), args=arguments) if name in REDUCTIONS:
            return Role.DIM if any(node is a for a in arguments) else Role.VALUE
        case _:
            return Role.VALUE


def _of_loop(passes: ast.AST, scene: Scene) -> Role:
    """Whether the number of a pass is an index, in a loop over a range or what is made of one."""
    node: ast.AST | None = passes
    while node is not None and not isinstance(node, ast.stmt | ast.comprehension):
        node = scene.parents.get(id(node))
    if not isinstance(node, ast.For | ast.comprehension):
        return Role.VALUE
    targets = {name.id for name in ast.walk(node.target) if isinstance(name, ast.Name)}
    within = node if isinstance(node, ast.For) else scene.parents.get(id(node), node)
    for one in ast.walk(within):
        if isinstance(one, ast.Subscript):
            used = {name.id for name in ast.walk(one.slice) if isinstance(name, ast.Name)}
            if used & targets:
                return Role.PLACES
    return Role.COUNT
