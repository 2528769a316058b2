"""Changes of what stands in an expression: its operators, numbers and indices."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Sequence
from enum import Enum

from gradverify.verifier.numerics.diagnosis.edits.calls import TWINS, of_call, of_letters
from gradverify.verifier.numerics.diagnosis.edits.edit import Edit, expression
from gradverify.verifier.numerics.diagnosis.edits.scene import Known, Value
from gradverify.verifier.numerics.diagnosis.edits.source import Slot

_OTHER_OPERATORS: dict[type[ast.operator], tuple[tuple[type[ast.operator], str], ...]] = {
    ast.Add: ((ast.Sub, "missing-term"),),
    ast.Sub: ((ast.Add, "missing-term"),),
    ast.Mult: ((ast.Div, "chain-factor"),),
    ast.Div: ((ast.Mult, "chain-factor"),),
    ast.BitAnd: ((ast.BitOr, "branch"),),
    ast.BitOr: ((ast.BitAnd, "branch"),),
}

_DROPPED = {
    ast.Add: "missing-term",
    ast.Sub: "missing-term",
    ast.Mult: "chain-factor",
    ast.Div: "chain-factor",
    ast.Pow: "chain-factor",
    ast.MatMult: "operand",
}

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.Gt, ast.LtE),
    ast.Gt: (ast.Lt, ast.GtE),
    ast.LtE: (ast.GtE, ast.Lt),
    ast.GtE: (ast.LtE, ast.Gt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
}

DROPPED_ATTRIBUTES = {"mT": "transposed", "T": "transposed", "mH": "transposed", "H": "transposed"}
"""Attributes that may be one too many, and the cause where one is."""

NUMBERS = ("-e", "e + 1", "e - 1", "2 * e", "e / 2", "1 / e", "1 - e", "e ** 2", "e ** 0.5")
"""What may be meant where a number stands that is not written out."""

INDICES = ("e + 1", "e - 1")
"""... and where it is an index."""


class Role(Enum):
    """What a number is for."""

    VALUE = "value"
    INDEX = "index"
    DIM = "dim"
    PLACES = "places"
    """Where a loop over places of tensors, or a slice, begins or ends."""
    COUNT = "count"
    """How many passes a loop has that is over nothing."""


_OF_ROLE = {
    Role.VALUE: "operand",
    Role.INDEX: "operand",
    Role.DIM: "wrong-reduction-dim",
    Role.PLACES: "region",
    Role.COUNT: "missing-term",
}
"""The cause where a number is another one."""

_NUMBERS_OF = {
    Role.VALUE: NUMBERS,
    Role.INDEX: INDICES,
    Role.DIM: INDICES,
    Role.PLACES: INDICES,
    Role.COUNT: INDICES,
}

_NUMBER = (int, float, bool)


def of_operators(slot: Slot, value: Value, known: Sequence[Known], role: Role) -> Iterator[Edit]:
    """Changes of one expression by its own kind."""
    node = slot.node
    if isinstance(node, ast.Constant):
        yield from _of_constant(slot, node.value, role)
    else:
        yield from _of_expression(slot, node, role)
        if isinstance(value, list) and len(value) > 1 and isinstance(node, ast.Name):
            yield Edit(slot, expression("e[::-1]", e=node), "permuted")
        if type(value) in {int, float} and isinstance(node, ast.expr):
            has_own = _ends_in_a_number(node) or _ends_in_a_number(slot.parent)
            texts = [t for t in _NUMBERS_OF[role] if t not in INDICES or not has_own]
            yield from (Edit(slot, expression(t, e=node), _OF_ROLE[role]) for t in texts)
    if type(value) in _NUMBER and not (role in {Role.INDEX, Role.DIM} and isinstance(node, ast.Constant)):
        yield from (Edit(slot, k.node, _OF_ROLE[role]) for k in known if _is_other_number(k.value, value))


def _ends_in_a_number(node: ast.AST) -> bool:
    """Whether it is `n - 1` or the like, where the number itself may be another one."""
    match node:
        case ast.BinOp(op=ast.Add() | ast.Sub(), right=ast.Constant()):
            return True
        case _:
            return False


def _is_other_number(other: Value, value: Value) -> bool:
    return type(other) in _NUMBER and bool(other != value)


def _of_expression(slot: Slot, node: object, role: Role) -> Iterator[Edit]:
    match node:
        case ast.BinOp():
            yield from _of_product(slot, node, role)
        case ast.Compare(ops=[operator]):
            for other in _COMPARISONS.get(type(operator), ()):
                yield Edit(slot, ast.Compare(node.left, [other()], node.comparators), "branch")
        case ast.UnaryOp(op=ast.USub() | ast.Invert(), operand=operand):
            cause = "missing-term" if role is Role.VALUE else _OF_ROLE[role]
            yield Edit(slot, operand, "branch" if isinstance(node.op, ast.Invert) else cause)
        case ast.Call():
            yield from of_call(slot, node)
        case ast.Attribute():
            yield from _of_attribute(slot, node)
        case ast.Subscript():
            yield from _of_subscript(slot, node)
        case ast.IfExp(body=body, orelse=otherwise):
            yield from (Edit(slot, one, "branch") for one in (body, otherwise))
        case ast.Tuple() | ast.List():
            yield from _of_elements(slot, node)
        case _:
            pass


def _of_constant(slot: Slot, constant: object, role: Role) -> Iterator[Edit]:
    match constant:
        case str():
            yield from of_letters(slot, constant)
        case bool():
            yield Edit(slot, ast.Constant(not constant), "operand")
        case int() | float():
            yield from _of_number(slot, constant, role)
        case _:
            pass


def _of_attribute(slot: Slot, node: ast.Attribute) -> Iterator[Edit]:
    if node.attr in DROPPED_ATTRIBUTES:
        yield Edit(slot, node.value, DROPPED_ATTRIBUTES[node.attr])
    for other, cause in TWINS.get(node.attr, ()):
        yield Edit(slot, ast.Attribute(node.value, other, ast.Load()), cause)


def _of_elements(slot: Slot, node: ast.Tuple | ast.List) -> Iterator[Edit]:
    """Gradients that are returned, or tensors that are joined, in another order."""
    if isinstance(node, ast.Tuple) and isinstance(slot.parent, ast.Return):
        yield from exchanged(slot, node, "swapped-inputs")
    elif isinstance(node, ast.List) and isinstance(slot.parent, ast.Call) and len(node.elts) <= MOST_JOINED:
        yield from exchanged(slot, node, "permuted")


MOST_JOINED = 5
"""Tensors that are joined of which every two are exchanged."""


def exchanged(slot: Slot, node: ast.Tuple | ast.List, cause: str) -> Iterator[Edit]:
    """Every two elements of a tuple, or of a list, in each other's place."""
    count = len(node.elts)
    for a in range(count):
        for b in range(a + 1, count):
            elements = list(node.elts)
            elements[a], elements[b] = elements[b], elements[a]
            yield Edit(slot, type(node)(elements, node.ctx), cause)


def _of_product(slot: Slot, node: ast.BinOp, role: Role) -> Iterator[Edit]:
    is_value = role is Role.VALUE
    for other, cause in _OTHER_OPERATORS.get(type(node.op), ()):
        changed = ast.BinOp(node.left, other(), node.right)
        yield Edit(slot, changed, cause if is_value else _OF_ROLE[role])
    if isinstance(node.op, ast.Sub | ast.Div | ast.MatMult | ast.Pow):
        cause = {ast.Sub: "missing-term", ast.MatMult: "transposed"}.get(type(node.op), "operand")
        turned = ast.BinOp(node.right, node.op, node.left)
        yield Edit(slot, turned, cause if is_value else _OF_ROLE[role])
    cause = _DROPPED.get(type(node.op), "operand") if is_value else _OF_ROLE[role]
    yield Edit(slot, node.left, cause)
    yield Edit(slot, node.right, cause)


def _of_number(slot: Slot, number: float, role: Role) -> Iterator[Edit]:
    others: list[float] = [-number, number + 1, number - 1]
    if role is not Role.INDEX:
        others += [0, 1]
    if role is Role.VALUE:
        others += [2 * number, number / 2]
    if number and role is Role.VALUE:
        others += [1 / number, number**2, 1 - number]
    if number > 0 and role is Role.VALUE:
        others.append(math.sqrt(number))
    seen = {float(number)}
    for other in others:
        if float(other) in seen:
            continue
        seen.add(float(other))
        whole = int(other) if type(number) is int and float(other).is_integer() else other
        yield Edit(slot, ast.Constant(whole), _OF_ROLE[role])


def _of_subscript(slot: Slot, node: ast.Subscript) -> Iterator[Edit]:
    """Another part of a whole, or the sum of all where one is picked."""
    match node.slice:
        case ast.Slice() as part:
            yield from _of_slice(slot, node, part)
        case ast.Constant(value=int()) | ast.UnaryOp():
            yield Edit(slot, expression("e.sum(0)", e=node.value), "not-summed-over-broadcast")
        case _:
            pass


def _of_slice(slot: Slot, node: ast.Subscript, part: ast.Slice) -> Iterator[Edit]:
    one, minus = ast.Constant(1), ast.UnaryOp(ast.USub(), ast.Constant(1))
    others = [
        ast.Slice(one, None, part.step),
        ast.Slice(None, minus, part.step),
        ast.Slice(None, None, part.step),
    ]
    for other in others:
        yield Edit(slot, ast.Subscript(node.value, other, node.ctx), "region")
