"""Changes of slices that go together: those of two values that are combined, both ends of one."""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Iterator

from gradverify.verifier.numerics.diagnosis.edits.edit import Edit
from gradverify.verifier.numerics.diagnosis.edits.source import Slot

MOST_SLICED = 5
"""Subscripts of one statement of which every two are changed together."""

CAUSE = "permuted"
"""Where each value meets another one than it should."""


def of_slices(slot: Slot, node: ast.stmt) -> Iterator[Edit]:
    """Two slices of a statement in each other's place; places moved by one, so that the lengths stay."""
    count = len(_sliced(node))
    for a, b in itertools.combinations(range(count), 2) if count <= MOST_SLICED else ():
        turned = copy.deepcopy(node)
        one, other = _sliced(turned)[a], _sliced(turned)[b]
        if ast.dump(one.slice) != ast.dump(other.slice):
            one.slice, other.slice = other.slice, one.slice
            yield Edit(slot, turned, CAUSE, is_whole=True)
        yield from _opposite_ends(slot, node, (a, b))
    for number in range(count if count <= MOST_SLICED else 0):
        yield from _moved(slot, node, number)
        yield from _other_ends(slot, node, number)


def _opposite_ends(slot: Slot, node: ast.stmt, numbers: tuple[int, int]) -> Iterator[Edit]:
    """`a[i:] * b[:-i]`, where `i` is off by one: of two slices one leaves out the start, one the end."""
    for by in (1, -1):
        turned = copy.deepcopy(node)
        one, other = (_sliced(turned)[k] for k in numbers)
        ends = [(s, e) for s in _slices(one) for e in _slices(other) if _are_opposite(s, e)]
        ends += [(s, e) for s in _slices(other) for e in _slices(one) if _are_opposite(s, e)]
        for start, end in ends:
            start.lower, end.upper = _more(start.lower, by), _more(end.upper, -by)
        if ends:
            yield Edit(slot, turned, CAUSE, is_whole=True)


def _moved(slot: Slot, node: ast.stmt, number: int) -> Iterator[Edit]:
    """`a[i:j]` one place further, or before."""
    for by in (1, -1):
        turned = copy.deepcopy(node)
        both = [s for s in _slices(_sliced(turned)[number]) if s.lower is not None and s.upper is not None]
        for part in both:
            part.lower, part.upper = _more(part.lower, by), _more(part.upper, by)
        if both:
            yield Edit(slot, turned, CAUSE, is_whole=True)


def _other_ends(slot: Slot, node: ast.stmt, number: int) -> Iterator[Edit]:
    """`a[1:, 1:]` for `a[:-1, :-1]`: what is left out at the start of every dimension, at the end instead."""
    turned = copy.deepcopy(node)
    parts = _slices(_sliced(turned)[number])
    bounds = [(part.lower, part.upper) for part in parts]
    for part, (lower, upper) in zip(parts, bounds, strict=True):
        match lower, upper:
            case ast.Constant(value=int(value)), None:
                part.lower, part.upper = None, _written(-value)
            case None, ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
                part.lower, part.upper = _written(value), None
            case _:
                return
    if len(parts) > 1:
        yield Edit(slot, turned, CAUSE, is_whole=True)


def _sliced(tree: ast.AST) -> list[ast.Subscript]:
    """Subscripts with a slice that leaves something out, always in one order."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and any(s.lower or s.upper for s in _slices(node))
    ]


def _slices(node: ast.Subscript) -> list[ast.Slice]:
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return [part for part in parts if isinstance(part, ast.Slice)]


def _are_opposite(start: ast.Slice, end: ast.Slice) -> bool:
    """Whether one leaves out what stands first and the other what stands last."""
    return start.upper is None and end.lower is None and None not in {start.lower, end.upper}


def _more(node: ast.expr | None, by: int) -> ast.expr | None:
    """A bound moved by one, as one would write it; None where an end moves to the very end."""
    match node:
        case ast.Constant(value=int(value)):
            return _written(value + by)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            return _written(by - value) if by != value else None
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=ast.Constant(value=int(value))):
            total = (value if isinstance(op, ast.Add) else -value) + by
            op = ast.Add() if total > 0 else ast.Sub()
            return ast.BinOp(left, op, ast.Constant(abs(total))) if total else left
        case ast.BinOp(left=ast.Constant(value=int(value)), op=ast.Sub(), right=right):
            left = _written(value + by)
            return ast.BinOp(left, ast.Sub(), right) if value + by else ast.UnaryOp(ast.USub(), right)
        case None:
            return None
        case _:
            return ast.BinOp(node, ast.Add() if by > 0 else ast.Sub(), ast.Constant(1))


def _written(number: int) -> ast.expr:
    return ast.Constant(number) if number >= 0 else ast.UnaryOp(ast.USub(), ast.Constant(-number))
