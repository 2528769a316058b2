"""One change of backward's source, and expressions with letters for their parts."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass

from gradverify.verifier.diagnose.edits.source import Slot

Node = ast.AST | list[ast.stmt]


@dataclass(frozen=True, eq=False)
class Edit:
    """Another node, or several statements, in one place."""

    slot: Slot
    node: Node
    cause: str
    """The cause whose mistake this takes back."""
    is_whole: bool = False
    """Whether the place is a statement's, so that nothing around it need be shown."""


def expression(text: str, **parts: ast.expr) -> ast.expr:
    """An expression with others in the place of names."""
    return filled(ast.parse(text, mode="eval").body, parts)


def filled(tree: ast.expr, parts: Mapping[str, ast.expr]) -> ast.expr:
    """An expression of its own with others in the place of names."""
    return _Filled(parts).visit(tree)  # type: ignore[no-any-return]


def matched(pattern: ast.expr, node: ast.AST) -> dict[str, ast.expr] | None:
    """What the small letters of a pattern stand for in an expression; None where it is no such one."""
    parts: dict[str, ast.expr] = {}
    return parts if _matches(pattern, node, parts) else None


def _matches(pattern: object, node: object, parts: dict[str, ast.expr]) -> bool:
    if isinstance(pattern, ast.Name) and len(pattern.id) == 1:
        if not isinstance(node, ast.expr):
            return False
        known = parts.setdefault(pattern.id, node)
        return known is node or ast.dump(known) == ast.dump(node)
    if type(pattern) is not type(node):
        return False
    if isinstance(pattern, list) and isinstance(node, list):
        same = len(pattern) == len(node)
        return same and all(_matches(p, n, parts) for p, n in zip(pattern, node, strict=True))
    if isinstance(pattern, ast.AST):
        fields = [name for name in pattern._fields if name != "ctx"]
        return all(_matches(getattr(pattern, f, None), getattr(node, f, None), parts) for f in fields)
    return pattern == node


class _Filled(ast.NodeTransformer):
    def __init__(self, parts: Mapping[str, ast.expr]) -> None:
        self.parts = parts

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """A part in the place of its name."""
        return self.parts.get(node.id, node)
