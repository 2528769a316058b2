"""One change of backward's source."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from gradverify.verifier.numerics.diagnosis.edits.source import Slot

Node = ast.AST | list[ast.stmt]


@dataclass(frozen=True)
class Edit:
    """Another node, or several statements, in one place."""

    slot: Slot
    node: Node
    cause: str
    """The cause whose mistake this takes back."""
    is_whole: bool = False
    """Whether the place is a statement's, so that nothing around it need be shown."""
    is_simple: bool = True
    """Whether nothing is put there that stands elsewhere: a slip of the pen, of which there may be two."""

    @cached_property
    def key(self) -> tuple[int, str]:
        """Which change it is, of a tree that is kept."""
        nodes = self.node if isinstance(self.node, list) else [self.node]
        return id(self.slot.node), ";".join(ast.dump(node) for node in nodes)


def expression(text: str, **parts: ast.expr) -> ast.expr:
    """An expression with others in the place of names."""
    return filled(ast.parse(text, mode="eval").body, parts)


def filled(tree: ast.expr, parts: Mapping[str, ast.expr]) -> ast.expr:
    """An expression of its own with others in the place of names."""
    return _Filled(parts).visit(tree)  # type: ignore[no-any-return]


class _Filled(ast.NodeTransformer):
    def __init__(self, parts: Mapping[str, ast.expr]) -> None:
        self.parts = parts

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """A part in the place of its name."""
        return self.parts.get(node.id, node)
