"""Backward computes out of place where it writes into grad_output: the change after which it no longer does.

Nothing else may change with it: what backward returns has to be the same to the last bit.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier.diagnose.edits.own_backward import Backward, OwnBackward
from gradverify.verifier.diagnose.edits.search import reported_change
from gradverify.verifier.diagnose.edits.source import (
    Edit,
    Source,
    expression,
    is_harmless,
    parents_of,
    slots,
)
from gradverify.verifier.diagnose.evidence import InBackward
from gradverify.verifier.numerics.probes import signed_values

KEY = 41
"""Of the random grad_output."""

CAUSE = "in-place"


def out_of_place(own: OwnBackward) -> InBackward | None:
    """The first change with which grad_output stays as it is; None where none is known."""
    source = own.source()
    if source is None or not is_harmless(source.function, source.tree) or not own.is_started():
        return None
    parents = parents_of(source.whole)
    for edit in (*_operations(source), *_copies(source)):
        with edit.slot.holding(edit.node):
            backward = source.compiled()
        if backward is not None and _is_same(own, backward):
            return reported_change(edit, source, parents)
    return None


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


def _is_same(own: OwnBackward, backward: Backward) -> bool:
    """Whether it gives what the class's own gives, and leaves every grad_output as it is."""
    written: list[bool] = []

    def watched(ctx: Any, *given: Any) -> Any:  # noqa: ANN401
        before = [g.clone() if isinstance(g, Tensor) else None for g in given]
        found = backward(ctx, *given)
        pairs = zip(before, given, strict=True)
        written.append(any(b is not None and not torch.equal(b, g) for b, g in pairs))
        return found

    for output, block in enumerate(own.problem.outputs.blocks):
        u = signed_values(block.stop - block.start, KEY)
        expected, found = (own.pulled_back(output, u, one) for one in (own.own, watched))
        if expected is None or found is None or not torch.equal(expected, found):
            return False
    return bool(written) and not any(written)
