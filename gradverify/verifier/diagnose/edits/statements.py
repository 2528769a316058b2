"""Changes of statements: one too many, in another order, an assignment for a sum, a loop from behind."""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Iterator

from gradverify.verifier.diagnose.edits.edit import Edit, expression, filled
from gradverify.verifier.diagnose.edits.rewrites import difference, exchanged
from gradverify.verifier.diagnose.edits.source import Slot, slots

MOST_NAMES = 8
"""Names of a statement of which every two are exchanged."""

MOST_APART = 3
"""Statements that may stand between two that are taken for each other."""


def of_statements(tree: ast.AST) -> Iterator[Edit]:
    """Every one, in the order of the source."""
    for slot in slots(tree):
        node = slot.node
        if isinstance(node, ast.stmt) and slot.place >= 0:
            if isinstance(node, ast.Assign | ast.AugAssign | ast.Return):
                yield from _of_names(slot, node)
            yield from _of_order(slot)
            yield from _of_values(slot, node)
            yield from _of_one(slot, node)
        if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Store):
            yield from exchanged(slot, node, "wrong-saved")


def _of_one(slot: Slot, node: ast.stmt) -> Iterator[Edit]:
    match node:
        case ast.Assign(targets=[ast.Name() | ast.Subscript() as target], value=value):
            yield Edit(slot, ast.AugAssign(_stored(target), ast.Add(), value), "duplicates", is_whole=True)
            yield Edit(slot, ast.Pass(), difference(value, target) or "operand", is_whole=True)
        case ast.AugAssign():
            yield from _of_sum(slot, node)
        case ast.Expr(value=ast.Call()):
            yield Edit(slot, ast.Pass(), "missing-term", is_whole=True)
        case ast.For(iter=passes):
            turned = expression("reversed(list(p))", p=passes)
            match passes:
                case ast.Call(func=ast.Name(id="reversed"), args=[inner]):
                    turned = inner
                case _:
                    pass
            yield Edit(slot, ast.For(node.target, turned, node.body, node.orelse), "permuted")
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
    is_product = isinstance(node.op, ast.Mult | ast.Div)
    cause = "chain-factor" if is_product else "missing-term"
    for other in (ast.Mult, ast.Div) if is_product else (ast.Add, ast.Sub):
        if not isinstance(node.op, other):
            yield Edit(slot, ast.AugAssign(node.target, other(), node.value), cause, is_whole=True)
    yield Edit(slot, ast.Assign([node.target], node.value, lineno=0), cause, is_whole=True)
    yield Edit(slot, ast.Pass(), cause, is_whole=True)


def _of_order(slot: Slot) -> Iterator[Edit]:
    """One statement behind the next one."""
    block: list[ast.stmt] = getattr(slot.parent, slot.field)
    last = ast.Return | ast.FunctionDef
    both = block[slot.place : slot.place + 2]
    if len(both) == 2 and not any(isinstance(one, last) for one in both):
        turned = [*block[: slot.place], *reversed(both), *block[slot.place + 2 :]]
        yield Edit(Slot(slot.parent, slot.field, -1, block), turned, "order", is_whole=True)


def _of_values(slot: Slot, node: ast.stmt) -> Iterator[Edit]:
    """Two statements near each other that set what the other one should."""
    block: list[ast.stmt] = getattr(slot.parent, slot.field)
    for place in range(slot.place + 1, min(slot.place + 2 + MOST_APART, len(block))):
        other = block[place]
        both = isinstance(node, ast.AugAssign) and isinstance(other, ast.AugAssign)
        if not both and not (isinstance(node, ast.Assign) and isinstance(other, ast.Assign)):
            continue
        assert isinstance(node, ast.Assign | ast.AugAssign)  # noqa: S101
        assert isinstance(other, ast.Assign | ast.AugAssign)  # noqa: S101
        one_turned, other_turned = copy.copy(node), copy.copy(other)
        one_turned.value, other_turned.value = other.value, node.value
        turned = [*block]
        turned[slot.place], turned[place] = one_turned, other_turned
        yield Edit(Slot(slot.parent, slot.field, -1, block), turned, "permuted", is_whole=True)


def _of_names(slot: Slot, node: ast.Assign | ast.AugAssign | ast.Return) -> Iterator[Edit]:
    """Two names of one expression, each wherever the other one stands."""
    value = node.value
    names = list(dict.fromkeys(n.id for n in ast.walk(value) if isinstance(n, ast.Name))) if value else []
    for a, b in itertools.combinations(names, 2) if len(names) <= MOST_NAMES else ():
        turned = copy.deepcopy(node)
        assert turned.value is not None  # noqa: S101
        turned.value = filled(turned.value, {a: ast.Name(b, ast.Load()), b: ast.Name(a, ast.Load())})
        yield Edit(slot, turned, "operand", is_whole=True)


def _stored(target: ast.Name | ast.Subscript) -> ast.Name | ast.Subscript:
    if isinstance(target, ast.Name):
        return ast.Name(target.id, ast.Store())
    return ast.Subscript(target.value, target.slice, ast.Store())
