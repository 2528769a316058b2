"""Whether a mismatch hangs on two sizes that were guessed to differ: it is looked for again where they agree.

An inverse by iterations, a logarithm by a series or a recurrence over powers runs on at an oblong matrix, and
there gives something else; places that are kept within one length are read off what has another. A backward
that divides by the wrong one of two sizes is right where they agree, too: where backward multiplies or
divides by a size, such inputs say nothing in its favour.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from gradverify.model import TensorInput
from gradverify.source import called_name, definitions_behind
from gradverify.verifier.checks.reading import own_backward
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.doubt.other_sizes import at_shapes
from gradverify.verifier.doubt.returned_shapes import Shapes

COUNTING = frozenset({"len", "mean", "nanmean", "var", "std", "var_mean", "std_mean", "numel", "nelement"})
"""Calls whose result is a size, or goes by one."""

SCALING = (ast.Mult, ast.Div, ast.FloorDiv, ast.Pow)
"""What makes a factor of a size. One that is added to is the end of a range of places."""

DRAWS = 3
"""Draws of values at which two sizes agree: iterations do not end at a matrix that is nearly singular."""

_PLAIN = frozenset({"float", "int", "sqrt", "tensor", "max", "min", "abs"})
"""Calls that make a number of a number: what goes into others is a shape, or a bound."""

_OF_CTX = frozenset({"saved_tensors", "saved_variables", "needs_input_grad"})
"""Attributes of the ctx that hold no number."""


def at_equal_sizes(sample: Sample) -> tuple[str, ...]:
    """What was guessed, in words, where backward is right once two sizes agree; empty where it is not."""
    function = sample.subject.function_class
    if function is None or _scales_by_sizes(own_backward(function)):
        return ()
    drawn = (replace(sample, case=replace(sample.case, seed=sample.case.seed + k)) for k in range(DRAWS))
    agreeing = (at_shapes(one, _agreeing(sample)) for one in drawn)
    shapes = next((found for found in agreeing if found is not None), None)
    if shapes is None:
        return ()
    given = {i.name: i.shape for i in sample.case.inputs if isinstance(i, TensorInput)}
    oblong = [n for n, s in shapes.items() if len(s) > 1 and s[-1] == s[-2] and given[n][-1] != given[n][-2]]
    if oblong:
        return tuple(f"that `{name}` need not be square" for name in oblong)
    changed = (set(zip(given[n], s, strict=True)) for n, s in shapes.items())
    pair = next((old, new) for several in changed for old, new in several if old != new)
    names = [next((name for name, n in sample.case.sizes if n == size), str(size)) for size in pair]
    return (f"that `{names[0]}` and `{names[1]}` may differ",)


def _agreeing(sample: Sample) -> Iterator[Shapes]:
    """The shapes in which two sizes have become one: first those of a matrix, then any others."""
    given = [i for i in sample.case.inputs if isinstance(i, TensorInput) and i.value is None]
    square = [i.shape[-2:] for i in given if len(i.shape) > 1]
    sizes = dict.fromkeys(n for i in given for n in i.shape)
    pairs = (tuple(sorted(pair)) for pair in (*square, *itertools.combinations(sizes, 2)))
    for new, old in dict.fromkeys(pairs):
        if 1 < new < old:
            yield {i.name: tuple(new if n == old else n for n in i.shape) for i in given if old in i.shape}


def _scales_by_sizes(backward: Any) -> bool:  # noqa: ANN401 - the user's
    """Whether a size is a factor or a divisor in backward, or in what it calls by name."""
    behind = (body for body, _ in definitions_behind(backward))
    return any(_scales(node, _sizes(body)) for body in behind for node in ast.walk(body))


def _scales(node: ast.AST, sizes: frozenset[str]) -> bool:
    match node:
        case ast.Call():
            return called_name(node) in COUNTING
        case ast.BinOp(left=left, right=right, op=op) | ast.AugAssign(target=left, value=right, op=op):
            return isinstance(op, SCALING) and any(_holds_size(o, sizes) for o in (left, right))
        case _:
            return False


def _holds_size(node: ast.AST, sizes: frozenset[str]) -> bool:
    """Whether an operand is a size, or a number that is made of one."""
    if isinstance(node, ast.expr) and (_is_size(node) or (isinstance(node, ast.Name) and node.id in sizes)):
        return True
    if isinstance(node, ast.Call):
        return called_name(node) in _PLAIN and any(_holds_size(a, sizes) for a in node.args)
    inner = node.operand if isinstance(node, ast.UnaryOp) else None
    parts = (node.left, node.right) if isinstance(node, ast.BinOp) else () if inner is None else (inner,)
    return any(_holds_size(part, sizes) for part in parts)


def _sizes(body: ast.FunctionDef) -> frozenset[str]:
    """Local names that are given a size, or several."""
    given = (n for n in ast.walk(body) if isinstance(n, ast.Assign) and _is_size(n.value))
    targets = (t for assigned in given for t in assigned.targets)
    return frozenset(n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))


def _is_size(node: ast.expr) -> bool:
    """`x.shape`, `x.shape[0]`, `x.size(0)`, and what was kept on the ctx as a number, or may have been."""
    match node:
        case ast.Attribute(attr="shape"):
            return True
        case ast.Attribute(value=ast.Name(id="ctx" | "self"), attr=name):
            return name not in _OF_CTX
        case ast.Subscript(value=value) | ast.Call(func=ast.Name(id="float" | "int"), args=[value]):
            return _is_size(value)
        case ast.Call(func=ast.Attribute(attr="size")):
            return True
        case _:
            return False
