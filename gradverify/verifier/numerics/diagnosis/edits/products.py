"""A gradient that lacks a term of two factors, each of which backward has."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Sequence

from torch import Tensor

from gradverify.verifier.numerics.diagnosis.edits.edit import Edit, expression
from gradverify.verifier.numerics.diagnosis.edits.known import Known, Value, joint_shape
from gradverify.verifier.numerics.diagnosis.edits.source import Slot

MOST_FACTORS = 24
"""Names of which every two are tried."""


def added_products(
    slot: Slot, value: Value, known: Sequence[Known], returned: frozenset[int]
) -> Iterator[Edit]:
    """What is returned with such a term; `returned` are the ids of the nodes that stand for gradients."""
    if id(slot.node) not in returned or not isinstance(value, Tensor) or not value.is_floating_point():
        return
    assert isinstance(slot.node, ast.expr)  # noqa: S101
    factors = [one for one in known if isinstance(one.value, Tensor) and one.value.is_floating_point()]
    for one, other in itertools.combinations(factors[:MOST_FACTORS], 2):
        if joint_shape(one.value, other.value) == value.shape:
            for text in ("e + p * q", "e - p * q"):
                yield Edit(slot, expression(text, e=slot.node, p=one.node, q=other.node), "missing-term")


def returned_by(tree: ast.FunctionDef) -> frozenset[int]:
    """The ids of the expressions that backward returns as gradients."""
    statements = [node.value for node in tree.body if isinstance(node, ast.Return)]
    tuples = [node.elts if isinstance(node, ast.Tuple) else [node] for node in statements if node is not None]
    return frozenset(id(node) for nodes in tuples for node in nodes)
