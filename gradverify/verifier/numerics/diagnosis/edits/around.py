"""What may be lost around an expression: a transpose, a conjugate, a sign, a flip, a sum, a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import torch
from torch import Tensor

from gradverify.verifier.numerics.diagnosis.edits.edit import Edit, expression
from gradverify.verifier.numerics.diagnosis.edits.scene import Value
from gradverify.verifier.numerics.diagnosis.edits.source import Slot

OF_ENTRIES = (
    ("-e", "missing-term"),
    ("2 * e", "missing-term"),
    ("e / 2", "missing-term"),
    ("1 - e", "operand"),
    ("e ** 2", "operand"),
    ("1 / e", "operand"),
    ("1 - e ** 2", "operand"),
    ("e * (1 - e)", "operand"),
    ("e.sqrt()", "operand"),
    ("e.exp()", "operand"),
    ("e.abs()", "operand"),
)
"""Functions of each entry of `e`, and the cause where one is lost."""

ALONG = (
    ("e.flip({})", "permuted"),
    ("e.roll(1, {})", "permuted"),
    ("e.roll(-1, {})", "permuted"),
)
"""Along each dimension, of tensors of any dtype."""

OF_SQUARES = (
    ("(e + e.mT) / 2", "transposed"),
    ("e + e.mT", "missing-term"),
    ("e.tril()", "region"),
    ("e.triu()", "region"),
    ("e.tril(-1)", "region"),
    ("e.triu(1)", "region"),
    ("e - torch.diag_embed(e.diagonal(dim1=-2, dim2=-1))", "missing-term"),
    ("e - torch.diag_embed(e.diagonal(dim1=-2, dim2=-1)) / 2", "missing-term"),
)
"""Of matrices with as many rows as columns."""

SUMS_ALONG = (
    ("e.cumsum({0})", "permuted"),
    ("e.flip({0}).cumsum({0}).flip({0})", "permuted"),
    ("e - e.mean({0}, keepdim=True)", "missing-term"),
    ("e.sum({0}, keepdim=True).expand_as(e)", "wrong-reduction-dim"),
)
"""Along each dimension, of floating ones."""


def of_values(slot: Slot, value: Value) -> Iterator[Edit]:
    """Whatever the value there lets be lost."""
    node = slot.node
    if isinstance(value, Tensor) and isinstance(node, ast.expr):
        yield from (Edit(slot, expression(text, e=node), cause) for text, cause in _around(value))


def _around(value: Tensor) -> Iterator[tuple[str, str]]:
    if value.is_complex():
        yield "e.conj()", "conjugate"
        yield "e.real", "operand"
        yield "e.imag", "operand"
    yield from _transposed(tuple(value.shape))
    continuous = value.is_floating_point() or value.is_complex()
    if continuous and value.dim() > 1 and value.shape[-1] == value.shape[-2] > 1:
        yield from OF_SQUARES
    if value.dtype is torch.bool:
        yield "~e", "branch"
    elif continuous:
        yield from OF_ENTRIES
    else:
        yield from (("e + 1", "permuted"), ("e - 1", "permuted"))
    for dim in (d for d, n in enumerate(value.shape) if n > 1):
        for text, cause in (*ALONG, *(SUMS_ALONG if continuous else ())):
            yield text.format(dim), cause


def _transposed(shape: tuple[int, ...]) -> Iterator[tuple[str, str]]:
    last = (len(shape) - 2, len(shape) - 1)
    for b in range(len(shape)):
        for a in range(b):
            if shape[a] == shape[b]:
                yield "e.mT" if (a, b) == last else f"e.transpose({a}, {b})", "transposed"
