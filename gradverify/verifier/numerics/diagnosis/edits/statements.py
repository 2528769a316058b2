"""Changes of statements: one too many, in another order, an assignment for a sum, a loop from behind."""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Iterator

from gradverify.verifier.numerics.diagnosis.edits.difference import OF_OPERATORS, made_of
from gradverify.verifier.numerics.diagnosis.edits.edit import Edit, expression, filled
from gradverify.verifier.numerics.diagnosis.edits.operators import exchanged
from gradverify.verifier.numerics.diagnosis.edits.slices import of_slices
from gradverify.verifier.numerics.diagnosis.edits.source import Slot, slots
from gradverify.verifier.numerics.diagnosis.edits.targets import of_targets


def of_statements(tree: ast.AST) -> Iterator[Edit]:
    """Every one, in the order of the source."""
    for slot in slots(tree):
        node = slot.node
        if isinstance(node, ast.Assign | ast.AugAssign | ast.Return) and slot.place >= 0:
            yield from _of_names(slot, node)
        if isinstance(node, ast.stmt) and slot.place >= 0:
            yield from _of_order(slot)
            yield from _of_one(slot, node)
            yield from of_targets(slot)
        if isinstance(node, ast.Assign | ast.AugAssign | ast.Return | ast.Expr) and slot.place >= 0:
            yield from of_slices(slot, node)
        if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Store):
            yield from exchanged(slot, node, "wrong-saved")


def _of_one(slot: Slot, node: ast.stmt) -> Iterator[Edit]:
    match node:
        case ast.Assign(targets=[ast.Name() | ast.Subscript() as target], value=value):
            yield Edit(slot, ast.AugAssign(_again(target), ast.Add(), value), "duplicates", is_whole=True)
            yield Edit(slot, ast.Pass(), made_of(value, ast.unparse(target)) or "operand", is_whole=True)
        case ast.AugAssign():
            yield from _of_sum(slot, node)
        case ast.Expr(value=ast.Call()):
            yield Edit(slot, ast.Pass(), "missing-term", is_whole=True)
        case ast.For():
            yield from _of_loop(slot, node)
        case ast.If(test=test, body=body, orelse=other) if "needs_input_grad" not in ast.unparse(test):
            yield Edit(slot, body, "branch")
            yield Edit(slot, other or [ast.Pass()], "branch")
        case _:
            pass


def _of_sum(slot: Slot, node: ast.AugAssign) -> Iterator[Edit]:
    """With another sign, assigned, not there at all, or where equal indices count each."""
    if isinstance(node.target, ast.Subscript):
        places = {"a": node.target.value, "i": node.target.slice, "v": node.value}
        accumulated = expression("a.index_put_((i,), v, accumulate=True)", **places)
        yield Edit(slot, ast.Expr(accumulated), "duplicates", is_whole=True)
    cause = OF_OPERATORS.get(type(node.op), "operand")
    others = (ast.Mult, ast.Div) if cause == "chain-factor" else (ast.Add, ast.Sub)
    for other in others:
        if not isinstance(node.op, other):
            yield Edit(slot, ast.AugAssign(node.target, other(), node.value), cause, is_whole=True)
    yield Edit(slot, ast.Assign([node.target], node.value, lineno=0), cause, is_whole=True)
    yield Edit(slot, ast.Pass(), cause, is_whole=True)


def _of_loop(slot: Slot, node: ast.For) -> Iterator[Edit]:
    """From the other end."""
    match node.iter:
        case ast.Call(func=ast.Name(id="reversed"), args=[inner]):
            turned = inner
        case passes:
            turned = expression("reversed(list(p))", p=passes)
    yield Edit(slot, ast.For(node.target, turned, node.body, node.orelse), "permuted")


def _of_order(slot: Slot) -> Iterator[Edit]:
    """One statement behind the next one."""
    block: list[ast.stmt] = getattr(slot.parent, slot.field)
    following = block[slot.place + 1] if slot.place + 1 < len(block) else None
    last = ast.Return | ast.FunctionDef
    if following is None or isinstance(following, last) or isinstance(slot.node, last):
        return
    both = Slot(slot.parent, slot.field, -1, block)
    turned = [*block[: slot.place], following, slot.node, *block[slot.place + 2 :]]
    yield Edit(both, turned, "order", is_whole=True)  # type: ignore[arg-type]


def _again(target: ast.expr) -> ast.Name | ast.Subscript:
    match target:
        case ast.Name(id=name):
            return ast.Name(name, ast.Store())
        case ast.Subscript(value=value, slice=part):
            return ast.Subscript(value, part, ast.Store())
        case _:
            raise TypeError


def _of_names(slot: Slot, node: ast.Assign | ast.AugAssign | ast.Return) -> Iterator[Edit]:
    """Two names of one expression, each wherever the other one stands."""
    value = node.value
    names = list(dict.fromkeys(n.id for n in ast.walk(value) if isinstance(n, ast.Name))) if value else []
    for a, b in itertools.combinations(names, 2) if len(names) <= MOST_NAMES else ():
        turned = copy.deepcopy(node)
        assert turned.value is not None  # noqa: S101
        turned.value = filled(turned.value, {a: ast.Name(b, ast.Load()), b: ast.Name(a, ast.Load())})
        yield Edit(slot, turned, "operand", is_whole=True)


MOST_NAMES = 8
"""Names of a statement of which every two are exchanged."""
