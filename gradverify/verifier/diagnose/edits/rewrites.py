"""What may be meant in the place of a statement or an expression, by its form or its number."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

from gradverify.verifier.diagnose.edits.edit import Edit, expression, matched
from gradverify.verifier.diagnose.edits.known import Value
from gradverify.verifier.diagnose.edits.source import Slot, slots
from gradverify.verifier.diagnose.edits.tables import (
    ALONG,
    DROPPED,
    FORMS,
    MOVING,
    NUMBERS,
    OF_COMPLEX,
    OF_ENTRIES,
    OF_SQUARES,
    PLACES,
    REDUCTIONS,
    SUMS_ALONG,
    TWINS,
)

NUMBER = (int, float, bool)
"""Types of numbers."""

MOST_ARGUMENTS = 5
"""Arguments of a call, or tensors that are joined, of which every two are exchanged."""


def of_statements(tree: ast.AST) -> Iterator[Edit]:
    """Every one, in the order of the source."""
    for slot in slots(tree):
        if isinstance(slot.node, ast.stmt) and slot.place >= 0:
            yield from _of_one(slot, slot.node)
        if isinstance(slot.node, ast.Tuple) and isinstance(slot.node.ctx, ast.Store):
            yield from exchanged(slot, slot.node, "wrong-saved")


def _of_one(slot: Slot, node: ast.stmt) -> Iterator[Edit]:
    match node:
        case ast.Assign(targets=[ast.Name() | ast.Subscript() as target], value=value):
            yield Edit(slot, ast.AugAssign(target, ast.Add(), value), "duplicates", is_whole=True)
            is_product = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult | ast.Div)
            yield Edit(slot, ast.Pass(), "chain-factor" if is_product else "operand", is_whole=True)
        case ast.AugAssign():
            yield from _of_sum(slot, node)
        case ast.Expr(value=ast.Call()):
            yield Edit(slot, ast.Pass(), "missing-term", is_whole=True)
        case ast.For(iter=passes):
            turned = expression("reversed(list(p))", p=passes)
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


def by_form(slot: Slot, value: Value, parents: dict[int, ast.AST]) -> Iterator[Edit]:
    """By what is there: its operator, its function, its arguments, its number."""
    node = slot.node
    if not isinstance(node, ast.expr):
        return
    number = cause_of_number(slot, parents)
    for made, cause in forms(node):
        yield Edit(slot, made, number if number != "operand" and type(value) in NUMBER else cause)
    yield from _of_parts(slot, node)
    if isinstance(node, ast.Name) and isinstance(value, list) and len(value) > 1:
        yield Edit(slot, expression("e[::-1]", e=node), "permuted")
    if type(value) in {int, float}:
        yield from _other_numbers(slot, node, value, number)


def _of_parts(slot: Slot, node: ast.expr) -> Iterator[Edit]:
    match node:
        case ast.Call():
            yield from _of_arguments(slot, node)
        case ast.Subscript(slice=ast.Slice() as part):
            for lower, upper in ((ast.Constant(1), None), (None, ast.Constant(-1)), (None, None)):
                other = ast.Slice(lower, upper, part.step)
                yield Edit(slot, ast.Subscript(node.value, other, node.ctx), "region")
        case ast.Subscript(slice=ast.Constant(value=int()) | ast.UnaryOp()):
            yield Edit(slot, expression("e.sum(0)", e=node.value), "not-summed-over-broadcast")
        case ast.Tuple() if isinstance(slot.parent, ast.Return):
            yield from exchanged(slot, node, "swapped-inputs")
        case ast.List() if isinstance(slot.parent, ast.Call) and len(node.elts) <= MOST_ARGUMENTS:
            yield from exchanged(slot, node, "permuted")
        case ast.Constant(value=bool() as flag):
            yield Edit(slot, ast.Constant(not flag), "operand")
        case _:
            pass


def around(slot: Slot, value: Value) -> Iterator[Edit]:
    """What may be lost around a tensor: a transpose, a conjugate, a sign, a flip, a sum, a function."""
    node = slot.node
    if isinstance(value, Tensor) and isinstance(node, ast.expr):
        yield from (Edit(slot, expression(text, e=node), cause) for text, cause in _lost_around(value))


def forms(node: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    """What may be meant by the form of an expression alone, with the causes."""
    for pattern, others, cause in _patterns().get(type(node), ()):
        parts = matched(pattern, node)
        if parts is not None:
            yield from ((expression(text, **parts), cause) for text in others)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from _of_name(node, node.func)


def exchanged(slot: Slot, node: ast.Tuple | ast.List, cause: str) -> Iterator[Edit]:
    """Every two elements of a tuple, or of a list, in each other's place."""
    for turned in _turned(node.elts):
        yield Edit(slot, type(node)(turned, node.ctx), cause)


def is_module(node: ast.expr) -> bool:
    """`torch`, `torch.linalg`, `F`: whose functions take all their tensors in brackets."""
    match node:
        case ast.Name(id=name):
            return name in {"torch", "F", "functional", "linalg", "math"}
        case ast.Attribute(value=inner):
            return is_module(inner)
        case _:
            return False


def cause_of_number(slot: Slot, parents: dict[int, ast.AST]) -> str:
    """The cause where another number is meant: by whether it is a bound, a dimension or a value."""
    node: ast.AST = slot.node
    while isinstance(around := parents.get(id(node)), ast.UnaryOp | ast.BinOp | ast.Tuple):
        node = around
    match around:
        case ast.Slice() | ast.Call(func=ast.Name(id="range")):
            return "region"
        case ast.keyword(arg="dim" | "axis"):
            return "wrong-reduction-dim"
        case ast.Call(func=ast.Attribute(attr=name), args=arguments) if name in REDUCTIONS.split():
            return "wrong-reduction-dim" if any(node is a for a in arguments) else "operand"
        case _:
            return "operand"


@cache
def _patterns() -> dict[type[ast.expr], list[tuple[ast.expr, list[str], str]]]:
    """The table of forms by the kind of the expression."""
    found: dict[type[ast.expr], list[tuple[ast.expr, list[str], str]]] = {}
    for before, others, cause in FORMS:
        pattern = ast.parse(before, mode="eval").body
        found.setdefault(type(pattern), []).append((pattern, others.split("; "), cause))
    return found


@cache
def _twins() -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for cause, pairs in TWINS:
        for one, other in (pair.split() for pair in pairs.split(", ")):
            found.setdefault(one, []).append((other, cause))
            found.setdefault(other, []).append((one, cause))
    return found


@cache
def _dropped() -> dict[str, str]:
    return {name: cause for cause, names in DROPPED for name in names.split()}


def _of_name(node: ast.Call, func: ast.Attribute) -> Iterator[tuple[ast.expr, str]]:
    """Another function, or none."""
    for other, cause in _twins().get(func.attr, ()):
        twin = ast.Attribute(func.value, other, ast.Load())
        yield ast.Call(twin, node.args, node.keywords), cause
    is_torchs = is_module(func.value)
    if func.attr in _dropped() and (node.args or not is_torchs):
        yield node.args[0] if is_torchs else func.value, _dropped()[func.attr]


def _of_arguments(slot: Slot, node: ast.Call) -> Iterator[Edit]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    for turned in _turned(node.args) if len(node.args) <= MOST_ARGUMENTS else ():
        yield Edit(slot, ast.Call(node.func, turned, node.keywords), MOVING.get(name, "operand"))
    for keyword in node.keywords:
        if keyword.arg not in {"keepdim", "dim"}:
            left = [other for other in node.keywords if other is not keyword]
            yield Edit(slot, ast.Call(node.func, node.args, left), "operand")


def _turned(nodes: list[ast.expr]) -> Iterator[list[ast.expr]]:
    for a, b in itertools.combinations(range(len(nodes)), 2):
        turned = list(nodes)
        turned[a], turned[b] = turned[b], turned[a]
        yield turned


def _other_numbers(slot: Slot, node: ast.expr, value: float, cause: str) -> Iterator[Edit]:
    """Written out where the number is."""
    is_index = isinstance(slot.parent, ast.Subscript)
    texts = (NUMBERS if cause == "operand" and not is_index else PLACES).split("; ")
    if not isinstance(node, ast.Constant):
        # Of `n - 1`, the number itself is changed.
        sums = [
            n for n in (node, slot.parent) if isinstance(n, ast.BinOp) and isinstance(n.right, ast.Constant)
        ]
        has_number = any(isinstance(n.op, ast.Add | ast.Sub) for n in sums)
        left = [text for text in texts if not (has_number and text in PLACES)]
        yield from (Edit(slot, expression(text, e=node), cause) for text in left)
        return
    seen = {float(value)}
    for text in (*texts, *(() if is_index else ("0", "1"))):
        try:
            other = eval(text, {"e": value})  # noqa: S307 - of the table above
        except (ZeroDivisionError, OverflowError):
            continue
        if isinstance(other, complex) or not math.isfinite(other) or float(other) in seen:
            continue
        seen.add(float(other))
        whole = int(other) if type(value) is int and float(other).is_integer() else other
        yield Edit(slot, ast.Constant(whole), cause)


def _lost_around(value: Tensor) -> Iterator[tuple[str, str]]:
    continuous = value.is_floating_point() or value.is_complex()
    rows = [*(OF_COMPLEX if value.is_complex() else ())]
    rows.append(("transposed", "; ".join(_transposes(tuple(value.shape)))))
    if continuous and value.dim() > 1 and value.shape[-1] == value.shape[-2] > 1:
        rows += OF_SQUARES
    if value.dtype is torch.bool:
        rows.append(("branch", "~e"))
    else:
        rows += OF_ENTRIES if continuous else [("permuted", PLACES)]
    for dim in (d for d, n in enumerate(value.shape) if n > 1):
        along = (*ALONG, *(SUMS_ALONG if continuous else ()))
        rows += [(cause, texts.format(dim)) for cause, texts in along]
    yield from ((text, cause) for cause, texts in rows for text in texts.split("; ") if text)


def _transposes(shape: tuple[int, ...]) -> Iterator[str]:
    last = (len(shape) - 2, len(shape) - 1)
    for a, b in itertools.combinations(range(len(shape)), 2):
        if shape[a] == shape[b]:
            yield "e.mT" if (a, b) == last else f"e.transpose({a}, {b})"
