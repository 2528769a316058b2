"""A change of backward's source as a sentence can show it."""

from __future__ import annotations

import ast
from pathlib import Path

from gradverify.verifier.diagnose.cause import Cause, InBackward
from gradverify.verifier.diagnose.edits.edit import Edit
from gradverify.verifier.diagnose.edits.traced_backward import TracedBackward

LONGEST_SHOWN = 76
"""Characters of a piece of backward that a sentence shows."""


def told(edit: Edit, run: TracedBackward) -> Cause:
    """The change as a cause: what stands there, what makes it right, and the line."""
    file = Path(run.source.function.__code__.co_filename).name
    before, after = _shown(edit, run)
    line = getattr(edit.slot.node, "lineno", 0)
    change = InBackward(file, line, before, after, _helper(edit, run), edit.cause)
    return Cause(edit.cause, is_weak=True, change=change)


def _helper(edit: Edit, run: TracedBackward) -> str:
    """The function that backward calls in which the change stands; empty for backward itself."""
    helpers = {id(helper): helper.name for helper in run.source.helpers}
    node: ast.AST | None = edit.slot.parent
    while node is not None and id(node) not in helpers:
        node = run.parents.get(id(node))
    return helpers.get(id(node), "")


def _shown(edit: Edit, run: TracedBackward) -> tuple[str, str]:
    """What stands there and what should: with as much around it as a sentence takes."""
    with edit.slot.holding(edit.node):
        shown = _text(edit.slot.node), _text(edit.node)
    around: ast.AST | None = run.parents.get(id(edit.slot.node))
    while around is not None and not isinstance(around, ast.FunctionDef) and not edit.is_whole:
        if isinstance(around, ast.expr | ast.Assign | ast.AugAssign | ast.Return | ast.Expr):
            text = ast.unparse(around)
            if len(text) > LONGEST_SHOWN:
                break
            with edit.slot.holding(edit.node):
                shown = text, ast.unparse(around)
        around = run.parents.get(id(around))
    return shown


def _text(node: ast.AST | list[ast.stmt]) -> str:
    nodes = node if isinstance(node, list) else [node]
    if isinstance(nodes[0], ast.For):
        return f"for {ast.unparse(nodes[0].target)} in {ast.unparse(nodes[0].iter)}"
    text = "; ".join("" if isinstance(one, ast.Pass) else ast.unparse(one) for one in nodes)
    return " ".join(text.split())
