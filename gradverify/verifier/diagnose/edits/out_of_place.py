"""What a backward may compute out of place, where it writes into what it is given."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torch import Tensor

from gradverify.verifier.diagnose.edits.source import Edit, Source, expression, slots

CAUSE = "in-place"


def computed_out_of_place(source: Source) -> Iterator[Edit]:
    """Changes with which backward may leave what it is given as it is."""
    made = [*_operations(source)]
    yield from made
    if made or any(isinstance(slot.node, ast.AugAssign) for slot in slots(source.tree)) or _assigns(source):
        yield from _copies(source)


def _assigns(source: Source) -> bool:
    """Whether it writes into part of something."""
    return any(
        isinstance(slot.node, ast.Subscript) and isinstance(slot.node.ctx, ast.Store)
        for slot in slots(source.tree)
    )


def _operations(source: Source) -> Iterator[Edit]:
    """Every operation that writes into what it is given, as one that does not."""
    for slot in slots(source.tree):
        match slot.node:
            case ast.Call(func=ast.Attribute(value=owner, attr=name)) if _twin(name):
                call = ast.Call(
                    ast.Attribute(owner, _twin(name), ast.Load()), slot.node.args, slot.node.keywords
                )
                if not isinstance(slot.parent, ast.Expr):
                    yield Edit(slot, call, CAUSE)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name)) as call):
                if _twin(name):
                    func = ast.Attribute(ast.Name(owner, ast.Load()), _twin(name), ast.Load())
                    made = ast.Call(func, call.args, call.keywords)
                    assigned = ast.Assign([ast.Name(owner, ast.Store())], made, lineno=0)
                    yield Edit(slot, assigned, CAUSE, is_whole=True)
            case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
                sum_of = ast.BinOp(ast.Name(name, ast.Load()), op, value)
                assigned = ast.Assign([ast.Name(name, ast.Store())], sum_of, lineno=0)
                yield Edit(slot, assigned, CAUSE, is_whole=True)
            case _:
                pass


def _twin(name: str) -> str:
    """The operation of a tensor that does the same out of place; empty for none."""
    plain = name[:-1]
    return plain if name.endswith("_") and not name.endswith("__") and hasattr(Tensor, plain) else ""


def _copies(source: Source) -> Iterator[Edit]:
    """A copy of each grad_output before anything else is done."""
    statements = [slot for slot in slots(source.tree) if slot.parent is source.tree and slot.field == "body"]
    first = next((s for s in statements if not _is_docstring(s.node)), None)
    for name in (a.arg for a in source.tree.args.args[1:]):
        copied = ast.Assign([ast.Name(name, ast.Store())], expression(f"{name}.clone()"), lineno=0)
        if first is not None and isinstance(first.node, ast.stmt):
            yield Edit(first, [copied, first.node], CAUSE, is_whole=True)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
