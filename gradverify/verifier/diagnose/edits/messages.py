"""A change of backward's source as a sentence can show it."""

from __future__ import annotations

import ast
from pathlib import Path

from gradverify.verifier.diagnose.cause import Cause, InBackward
from gradverify.verifier.diagnose.edits.edit import Edit
from gradverify.verifier.diagnose.edits.rewrites import difference
from gradverify.verifier.diagnose.edits.traced_backward import TracedBackward

LONGEST_SHOWN = 76
"""Characters of a piece of backward that a sentence shows."""


def told(edit: Edit, run: TracedBackward) -> Cause:
    """The change as a cause: what stands there, what makes it right, and the line."""
    file = Path(run.source.function.__code__.co_filename).name
    before, after, line = _shown(edit, run)
    of_loop = isinstance(edit.slot.node, ast.For) or isinstance(edit.slot.parent, ast.For)
    cause = _cause_of(edit)
    change = InBackward(file, line, before, after, edit.cause == "order", of_loop, _helper(edit, run), cause)
    return Cause(cause, is_weak=True, change=change)


def _cause_of(edit: Edit) -> str:
    """By how it differs from what stands there, of what stands elsewhere, too."""
    before, after = edit.slot.node, edit.node
    is_plain = edit.is_known and edit.cause in {"operand", "wrong-saved"}
    if is_plain and isinstance(before, ast.expr) and isinstance(after, ast.expr):
        return difference(before, after) or edit.cause
    return "operand" if edit.cause == "order" else edit.cause


def _helper(edit: Edit, run: TracedBackward) -> str:
    """The function that backward calls in which the change stands; empty for backward itself."""
    node: ast.AST | None = edit.slot.parent
    while node is not None and not any(node is helper for helper in run.source.helpers):
        node = run.parents.get(id(node))
    return node.name if isinstance(node, ast.FunctionDef) else ""


def _shown(edit: Edit, run: TracedBackward) -> tuple[str, str, int]:
    """What stands there, what should, and the line: with as much around it as a sentence takes."""
    node: ast.AST = edit.slot.node if isinstance(edit.slot.node, ast.AST) else edit.slot.parent
    if isinstance(edit.slot.node, list):
        return _exchanged(edit)
    line = getattr(node, "lineno", 0)
    with edit.slot.holding(edit.node):
        after_of = _texts(edit.node)
    before, after = _texts(node), after_of
    around: ast.AST | None = run.parents.get(id(node))
    while around is not None and not isinstance(around, ast.FunctionDef) and not edit.is_whole:
        if isinstance(around, ast.expr | ast.Assign | ast.AugAssign | ast.Return | ast.Expr):
            text = ast.unparse(around)
            if len(text) > LONGEST_SHOWN:
                break
            with edit.slot.holding(edit.node):
                before, after = text, ast.unparse(around)
        around = run.parents.get(id(around))
    return before, after, line


def _exchanged(edit: Edit) -> tuple[str, str, int]:
    """The two statements whose order is turned, or that have each other's value."""
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
