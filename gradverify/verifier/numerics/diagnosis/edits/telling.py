"""A change of backward's source as a sentence can show it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from gradverify.verifier.numerics.diagnosis.cause import Cause, InBackward, Strength
from gradverify.verifier.numerics.diagnosis.edits.edit import Edit
from gradverify.verifier.numerics.diagnosis.edits.scene import Scene

LONGEST_SHOWN = 76
"""Characters of a piece of backward that a sentence shows."""


def told(edits: Sequence[Edit], scene: Scene) -> Cause:
    """The changes as a cause, that of the first: what stands there, what makes it right, and the line."""
    return Cause(_cause_of(edits[0]), Strength.WEAK, kind="edit", changes=tuple(_changes(edits, scene)))


def _cause_of(edit: Edit) -> str:
    return "operand" if edit.cause == "order" else edit.cause


def _changes(edits: Sequence[Edit], scene: Scene) -> Iterator[InBackward]:
    file = Path(scene.source.function.__code__.co_filename).name
    statements = [_statement(edit, scene) for edit in edits]
    helpers = [_helper(edit, scene) for edit in edits]
    if len(edits) > 1 and statements[0] is not None and statements[0] is statements[-1]:
        before = _texts(statements[0])
        with ExitStack() as held:
            for edit in edits:
                held.enter_context(edit.slot.holding(edit.node))
            after = _texts(statements[0])
        yield InBackward(
            file, statements[0].lineno, before, after, helper=helpers[0], cause=_cause_of(edits[0])
        )
        return
    for edit, helper in zip(edits, helpers, strict=True):
        before, after, line = _shown(edit, scene)
        of_loop = isinstance(edit.slot.node, ast.For) or isinstance(edit.slot.parent, ast.For)
        yield InBackward(file, line, before, after, edit.cause == "order", of_loop, helper, _cause_of(edit))


def _helper(edit: Edit, scene: Scene) -> str:
    """The function that backward calls in which the change stands; empty for backward itself."""
    node: ast.AST | None = edit.slot.parent
    while node is not None and not any(node is helper for helper in scene.source.helpers):
        node = scene.parents.get(id(node))
    return node.name if isinstance(node, ast.FunctionDef) else ""


def _statement(edit: Edit, scene: Scene) -> ast.stmt | None:
    """What a change stands in, where it leaves that a statement of one line."""
    node: ast.AST | None = None if edit.is_whole else edit.slot.parent
    while node is not None and not isinstance(node, ast.stmt):
        node = scene.parents.get(id(node))
    return node if isinstance(node, ast.Assign | ast.AugAssign | ast.Return | ast.Expr) else None


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
    """The two statements whose order is turned, or that have each other's part."""
    block, turned = edit.slot.node, edit.node
    assert isinstance(block, list)  # noqa: S101
    assert isinstance(turned, list)  # noqa: S101
    places = [k for k, (a, b) in enumerate(zip(block, turned, strict=True)) if a is not b]
    if edit.cause == "order":
        return _texts(block[places[0]]), _texts(block[places[0] + 1]), block[places[0]].lineno
    before, after = ([statements[k] for k in places] for statements in (block, turned))
    return _texts(before), _texts(after), before[0].lineno


def _texts(node: ast.AST | list[ast.stmt]) -> str:
    nodes = node if isinstance(node, list) else [node]
    if isinstance(nodes[0], ast.For):
        return f"for {ast.unparse(nodes[0].target)} in {ast.unparse(nodes[0].iter)}"
    text = "; ".join("" if isinstance(one, ast.Pass) else ast.unparse(one) for one in nodes)
    return " ".join(text.split())
