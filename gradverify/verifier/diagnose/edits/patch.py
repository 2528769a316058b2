"""A change of backward as lines of its file: what is there is left as its author formatted it."""

from __future__ import annotations

import ast
import linecache
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

from gradverify.model import LinePatch, shown_path
from gradverify.verifier.diagnose.edits.edit import Edit, Node

WHOLE = ast.expr | ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return | ast.Expr
"""What may be written anew around a change: nothing with further statements in it."""


def patch_of(
    edit: Edit, function: ast.FunctionDef, parents: Mapping[int, ast.AST], file: Path
) -> LinePatch | None:
    """The lines that a change of a function of a file replaces; None where no lines say that change alone.

    The changed lines parse to the very tree that was run: parentheses are added where they must be.
    """
    lines = linecache.getlines(str(file))
    if not lines or function.end_lineno is None or function.end_lineno > len(lines):
        return None
    with edit.slot.holding(edit.node):
        meant = ast.unparse(function)
    for node, text in _spans(edit, parents):
        patch = _replaced(node, text, lines, _indent(lines[function.lineno - 1]))
        if patch is not None and _says(patch, meant, function, lines):
            first = patch.line - 1
            end = first + len(patch.removed)
            return LinePatch.within(shown_path(file), lines, first, end, patch.added)
    return None


def _spans(edit: Edit, parents: Mapping[int, ast.AST]) -> Iterator[tuple[ast.AST, str]]:
    """Nodes that hold the change, the smallest first, with what is to stand in their place."""
    node: ast.AST | None = edit.slot.node
    text = _printed(edit.node)
    while node is not None:
        if hasattr(node, "end_lineno"):
            if isinstance(node, ast.Tuple) and text.startswith("("):
                yield node, text[1:-1]  # as authors write it, where that says the same
            yield node, text
            if isinstance(node, ast.expr):
                yield node, f"({text})"
        if isinstance(node, ast.stmt):
            return
        node = parents.get(id(node))
        if not isinstance(node, WHOLE):
            return
        with edit.slot.holding(edit.node):
            text = ast.unparse(node)


def _printed(node: Node) -> str:
    return "\n".join(ast.unparse(one) for one in (node if isinstance(node, list) else [node]))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _replaced(node: ast.AST, text: str, lines: list[str], indent: int) -> LinePatch | None:
    """The lines of a node with a text in its place; columns of nodes are bytes of what was dedented."""
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
    start, end = getattr(node, "col_offset", 0), getattr(node, "end_col_offset", 0)
    old = [line.rstrip("\r\n") for line in lines[first - 1 : last]]
    if not old or any(line[:indent].strip() for line in old):
        return None
    before = old[0].encode()[: start + indent].decode(errors="replace")
    after = old[-1].encode()[end + indent :].decode(errors="replace")
    indented = text.replace("\n", "\n" + " " * _indent(old[0]))
    new = f"{before}{indented}{after}".split("\n")
    return LinePatch("", first, tuple(old), tuple(new if text else []))


def _says(patch: LinePatch, meant: str, function: ast.FunctionDef, lines: list[str]) -> bool:
    """Whether the function with these lines is the tree that is meant."""
    own = [line.rstrip("\r\n") for line in lines[function.lineno - 1 : function.end_lineno]]
    at = patch.line - function.lineno
    own[at : at + len(patch.removed)] = patch.added
    try:
        (found,) = ast.parse(textwrap.dedent("\n".join(own))).body
    except (SyntaxError, ValueError):
        return False
    return ast.unparse(found) == meant
