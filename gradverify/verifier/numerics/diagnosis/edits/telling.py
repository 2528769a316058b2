"""A change of backward's source as a sentence can show it."""

from __future__ import annotations

import ast
from pathlib import Path

from gradverify.verifier.numerics.diagnosis.cause import Cause, InBackward, Strength
from gradverify.verifier.numerics.diagnosis.edits.edit import Edit
from gradverify.verifier.numerics.diagnosis.edits.scene import Scene

LONGEST_SHOWN = 76
"""Characters of a piece of backward that a sentence shows."""


def told(edit: Edit, scene: Scene) -> Cause:
    """The change as a cause: what stands there, what makes it right, and the line."""
    source = scene.source
    before, after, line = _shown(edit, scene)
    return Cause(
        "operand" if edit.cause == "order" else edit.cause,
        Strength.WEAK,
        kind="edit",
        edited=InBackward(
            Path(source.function.__code__.co_filename).name,
            source.first_line + line - 1 if line else 0,
            before,
            after,
            is_order=edit.cause == "order",
        ),
    )


def _shown(edit: Edit, scene: Scene) -> tuple[str, str, int]:
    """What stands there, what should, and the line: with as much around it as a sentence takes."""
    node: ast.AST = edit.slot.node if isinstance(edit.slot.node, ast.AST) else edit.slot.parent
    if isinstance(edit.slot.node, list):
        return _exchanged(edit)
    line = getattr(node, "lineno", 0)
    with edit.slot.holding(edit.node):
        after_of = _texts(edit.node)
    before, after = _texts(node), after_of
    around: ast.AST | None = scene.parents.get(id(node))
    while around is not None and not isinstance(around, ast.FunctionDef) and not edit.is_whole:
        if isinstance(around, ast.expr | ast.Assign | ast.AugAssign | ast.Return | ast.Expr):
            text = ast.unparse(around)
            if len(text) > LONGEST_SHOWN:
                break
            with edit.slot.holding(edit.node):
                before, after = text, ast.unparse(around)
        around = scene.parents.get(id(around))
    return before, after, line


def _exchanged(edit: Edit) -> tuple[str, str, int]:
    """The two statements whose order is turned."""
    block, turned = edit.slot.node, edit.node
    assert isinstance(block, list)  # noqa: S101
    assert isinstance(turned, list)  # noqa: S101
    place = next(k for k, (a, b) in enumerate(zip(block, turned, strict=True)) if a is not b)
    return _texts(block[place]), _texts(block[place + 1]), block[place].lineno


def _texts(node: ast.AST | list[ast.stmt]) -> str:
    nodes = node if isinstance(node, list) else [node]
    if isinstance(nodes[0], ast.For):
        return f"for {ast.unparse(nodes[0].target)} in {ast.unparse(nodes[0].iter)}"
    text = "; ".join("" if isinstance(one, ast.Pass) else ast.unparse(one) for one in nodes)
    return " ".join(text.split())
