"""Two statements of one block that have each other's part: where their values go, or an argument."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

from gradverify.verifier.numerics.diagnosis.edits.edit import Edit
from gradverify.verifier.numerics.diagnosis.edits.source import Slot

MOST_APART = 3
"""Statements that may stand between two that are taken for each other."""


def of_targets(slot: Slot) -> Iterator[Edit]:
    """The statement of a slot with one behind it: each with the other's target, or the other's argument."""
    block: list[ast.stmt] = getattr(slot.parent, slot.field)
    behind = block[slot.place + 1 : slot.place + 2 + MOST_APART]
    both = Slot(slot.parent, slot.field, -1, block)
    for number, other in enumerate(behind, slot.place + 1):
        for one_turned, other_turned, cause in _exchanged(block[slot.place], other):
            turned = [*block]
            turned[slot.place], turned[number] = one_turned, other_turned
            yield Edit(both, turned, cause, is_whole=True)


def _exchanged(one: ast.stmt, other: ast.stmt) -> Iterator[tuple[ast.stmt, ast.stmt, str]]:
    match one, other:
        case ast.AugAssign(), ast.AugAssign() if type(one.op) is type(other.op):
            yield from _of_values(one, other, one.target, other.target)
        case ast.Assign(targets=[target]), ast.Assign(targets=[other_target]):
            yield from _of_values(one, other, target, other_target)
        case ast.Expr(value=ast.Call() as call), ast.Expr(value=ast.Call() as other_call):
            if ast.unparse(call.func) == ast.unparse(other_call.func):
                yield from _of_arguments(one, other, call, other_call)
        case _:
            pass


def _of_values(
    one: ast.Assign | ast.AugAssign,
    other: ast.Assign | ast.AugAssign,
    target: ast.expr,
    other_target: ast.expr,
) -> Iterator[tuple[ast.stmt, ast.stmt, str]]:
    places = isinstance(target, ast.Subscript) and isinstance(other_target, ast.Subscript)
    names = isinstance(target, ast.Name) and isinstance(other_target, ast.Name)
    differ = ast.dump(target) != ast.dump(other_target) and ast.dump(one.value) != ast.dump(other.value)
    if differ and (places or names):
        turned, other_turned = copy.copy(one), copy.copy(other)
        turned.value, other_turned.value = other.value, one.value
        yield turned, other_turned, "permuted" if places else "operand"


def _of_arguments(
    one: ast.Expr, other: ast.Expr, call: ast.Call, other_call: ast.Call
) -> Iterator[tuple[ast.stmt, ast.stmt, str]]:
    pairs = zip(call.args, other_call.args, strict=False)
    for place, (argument, other_argument) in enumerate(pairs):
        if ast.dump(argument) == ast.dump(other_argument):
            continue
        turned, other_turned = copy.deepcopy(one), copy.deepcopy(other)
        for statement, given in ((turned, other_argument), (other_turned, argument)):
            assert isinstance(statement.value, ast.Call)  # noqa: S101
            statement.value.args[place] = given
        yield turned, other_turned, "permuted"
