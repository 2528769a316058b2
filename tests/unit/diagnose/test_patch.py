"""A change of a function's tree as lines of its file: what stands around it stays as its author wrote it."""

from __future__ import annotations

import ast
import importlib.util
import textwrap
from pathlib import Path
from typing import Any

import pytest

from gradverify.verifier.diagnose.edits.search import patch_of
from gradverify.verifier.diagnose.edits.source import Edit, slots, source_of

SOURCE = """
class Scale:
    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors  # what forward saved
        if ctx.n:
            y = g - w  # é: a column is no byte
        grad = (g
                * x)   # over two lines
        return grad, y * w
"""


@pytest.fixture
def backward(tmp_path: Path) -> Any:
    path = tmp_path / "scaled.py"
    path.write_text(SOURCE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("scaled", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return source_of(module.Scale.backward), path


def patched(backward: Any, before: str, after: str) -> Any:
    """The last place with this text, and another node there."""
    source, path = backward
    slot = [s for s in slots(source.tree) if _unparsed(s.node) == before][-1]
    new: Any = ast.parse(textwrap.dedent(after)).body
    if isinstance(slot.node, ast.expr):
        new = new[0].value
    elif isinstance(slot.node, ast.operator):
        new = new[0].value.op
    parents = {id(child): node for node in ast.walk(source.tree) for child in ast.iter_child_nodes(node)}
    return patch_of(Edit(slot, new, "cause"), source.tree, parents, path)


def _unparsed(node: ast.AST) -> str:
    return ast.unparse(node) if isinstance(node, ast.expr | ast.stmt) else type(node).__name__


@pytest.mark.parametrize(
    ("before", "after", "removed", "added"),
    [
        ("g - w", "g + w", "            y = g - w  # é: a column is no byte",
         "            y = g + w  # é: a column is no byte"),
        ("w", "g + w", "        return grad, y * w", "        return grad, y * (g + w)"),
        ("Sub", "g + w", "            y = g - w  # é: a column is no byte",
         "            y = g + w  # é: a column is no byte"),
        ("g * x", "g / x", "        grad = (g\n                * x)   # over two lines",
         "        grad = (g / x)   # over two lines"),
        ("(x, w)", "w, x", "        x, w = ctx.saved_tensors  # what forward saved",
         "        w, x = ctx.saved_tensors  # what forward saved"),
        ("y = g - w", "y = g\ny = y - w", "            y = g - w  # é: a column is no byte",
         "            y = g\n            y = y - w  # é: a column is no byte"),
    ],
)  # fmt: skip
def test_the_smallest_piece_is_written_anew(backward, before, after, removed, added):
    patch = patched(backward, before, after)
    assert (patch.removed, patch.added) == (tuple(removed.split("\n")), tuple(added.split("\n")))
    lines = SOURCE.splitlines()
    assert lines[patch.line - 1 : patch.line - 1 + len(patch.removed)] == [*patch.removed]
    assert [*patch.below] == lines[patch.line - 1 + len(patch.removed) :][:3]


def test_what_no_lines_say_has_no_patch(backward):
    assert patched(backward, "y = g - w", "") is None  # an `if` with nothing in it
