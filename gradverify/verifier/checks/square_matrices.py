"""Whether a mismatch hangs on matrices that were guessed to be oblong: it is looked for again at square ones.

An inverse by iterations, a logarithm by a series or a recurrence over powers runs on at an oblong matrix, and
there gives something else. A backward that divides by the wrong one of two sizes is right for square
matrices, too: where backward computes with a size, square ones say nothing in its favour.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from gradverify.model import TensorInput
from gradverify.verifier.checks.other_sizes import Shapes, at_shapes
from gradverify.verifier.checks.reading import own_backward
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.collect.inference.bodies import bodies
from gradverify.verifier.collect.inference.uses import called_name

COUNTING = frozenset({"len", "mean", "nanmean", "var", "std", "var_mean", "std_mean", "numel", "nelement"})
"""Calls whose result is a size, or goes by one."""

_OF_CTX = frozenset({"saved_tensors", "saved_variables", "needs_input_grad"})
"""Attributes of the ctx that hold no number."""


def at_square(sample: Sample) -> tuple[str, ...]:
    """Names of matrices that were guessed to be oblong where backward is right at square ones; else empty."""
    function = sample.subject.function_class
    if function is None or _computes_with_sizes(own_backward(function)):
        return ()
    shapes = at_shapes(sample, _square(sample))
    if shapes is None:
        return ()
    given = {i.name: i.shape for i in sample.case.inputs if isinstance(i, TensorInput)}
    return tuple(n for n, shape in shapes.items() if len(shape) > 1 and given[n][-1] != given[n][-2])


def _square(sample: Sample) -> Iterator[Shapes]:
    """The shapes in which one oblong matrix has become square, and with it all that have its sizes."""
    given = [i for i in sample.case.inputs if isinstance(i, TensorInput) and i.value is None]
    pairs = (i.shape[-2:] for i in given if len(i.shape) > 1 and i.shape[-1] != i.shape[-2])
    for pair in dict.fromkeys(pairs):
        for kept, left in (pair, pair[::-1]):
            yield {i.name: tuple(kept if n == left else n for n in i.shape) for i in given if left in i.shape}


def _computes_with_sizes(backward: Any) -> bool:  # noqa: ANN401 - the user's
    """Whether a size is a factor, a divisor or a summand in backward, or in what it calls by name."""
    return any(_computes(node, _sizes(body)) for body, _ in bodies(backward) for node in ast.walk(body))


def _computes(node: ast.AST, sizes: frozenset[str]) -> bool:
    match node:
        case ast.Call():
            return called_name(node) in COUNTING
        case ast.BinOp(left=left, right=right) | ast.AugAssign(target=left, value=right):
            return any(_is_size(o) or (isinstance(o, ast.Name) and o.id in sizes) for o in (left, right))
        case _:
            return False


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
