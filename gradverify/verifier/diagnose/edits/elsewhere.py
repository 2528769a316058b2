"""What backward has at hand, in the place of an expression, as a factor, or as a term."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gradverify.verifier.diagnose.edits.edit import Edit, expression
from gradverify.verifier.diagnose.edits.known import Known, Value, joint_shape
from gradverify.verifier.diagnose.edits.source import Slot

FACTORS = ("e * p", "e / p", "e * (1 - p)", "e * p ** 2", "e * (1 - p ** 2)")
"""How a factor may be lost; the first two as it is."""

CENTRED = (
    "e - (p * e).sum({}, keepdim=True)",
    "e - p * (p * e).sum({}, keepdim=True)",
    "e - p * e.sum({}, keepdim=True)",
)
"""What is left where a distribution, or a direction, takes its part."""

SUMMING = frozenset({"sum", "mean", "cumsum"})
"""Methods of a value within which a factor is another one than around them."""


def replaced(slot: Slot, value: Value, known: Sequence[Known]) -> Iterator[Edit]:
    """Another value of the same kind."""
    if not isinstance(value, Tensor) or not isinstance(slot.node, ast.expr):
        return
    own = ast.unparse(slot.node)
    for one in known:
        other = one.value
        if not isinstance(other, Tensor) or one.text == own or other.dtype != value.dtype:
            continue
        is_alike = other.shape == value.shape
        node = one.node if is_alike else _fitted(one, value)
        if node is not None and not (is_alike and torch.equal(other, value)):
            yield Edit(slot, node, _cause_of(slot.node, one, value, known))


def renumbered(slot: Slot, value: Value, known: Sequence[Known], cause: str) -> Iterator[Edit]:
    """A number that has a name, where one is written."""
    if isinstance(slot.node, ast.Constant) and type(value) in {int, float} and cause == "operand":
        named = (one for one in known if type(one.value) in {int, float} and one.value != value)
        yield from (Edit(slot, one.node, cause) for one in named)


def multiplied(slot: Slot, value: Value, known: Sequence[Known]) -> Iterator[Edit]:
    """With one more factor."""
    for one in known if _is_summand(slot, value) else ():
        factor = _factor(one, value)
        if factor is not None and isinstance(slot.node, ast.expr):
            cause = _cause_of_factor(one)
            for text in FACTORS:
                changed = expression(text, e=slot.node, p=factor)
                yield Edit(slot, changed, cause if text in FACTORS[:2] else "chain-factor")


def centred(slot: Slot, value: Value, known: Sequence[Known]) -> Iterator[Edit]:
    """Without its mean that others weigh, as behind a softmax, or its part along others."""
    is_term = isinstance(slot.parent, ast.BinOp) and isinstance(value, Tensor) and value.is_floating_point()
    if not isinstance(slot.node, ast.expr) or not (is_term or _is_summand(slot, value)) or value.dim() == 0:
        return
    for one in known:
        other = one.value
        if isinstance(other, Tensor) and other.is_floating_point() and other.shape == value.shape:
            for dim in (d - value.dim() for d, n in enumerate(value.shape) if n > 1):
                for text in CENTRED:
                    changed = expression(text.format(dim), e=slot.node, p=one.node)
                    yield Edit(slot, changed, "missing-term")


def _cause_of(node: ast.expr, one: Known, value: Tensor, known: Sequence[Known]) -> str:
    if value.dtype == torch.bool:
        return "branch"
    if not (value.is_floating_point() or value.is_complex()):
        return "permuted"
    is_saved = any(isinstance(node, ast.Name) and k.text == node.id and k.is_saved for k in known)
    return "wrong-saved" if one.is_saved and is_saved else "operand"


def _cause_of_factor(one: Known) -> str:
    """A mask that is left out is a condition; what backward is given is an operand, as if it were ones."""
    value = one.value
    if isinstance(value, Tensor) and bool(((value == 0) | (value == 1)).all()):
        return "branch"
    return "operand" if one.is_saved or isinstance(one.node, ast.Attribute) else "chain-factor"


def _is_summand(slot: Slot, value: Value) -> bool:
    """Whether a floating value is a whole term: a factor within a product would be the same further out."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return False
    parent = slot.parent
    if isinstance(parent, ast.BinOp):
        return isinstance(parent.op, ast.Add | ast.Sub)
    if isinstance(parent, ast.Attribute) and parent.attr in SUMMING:
        return True
    if isinstance(parent, ast.Attribute | ast.Subscript | ast.Compare | ast.keyword | ast.Slice):
        return False
    return not (isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.USub))


def _factor(one: Known, value: Tensor) -> ast.expr | None:
    """An expression by which a value can be multiplied without another shape coming of it."""
    other = one.value
    if type(other) in {int, float}:
        return one.node if other not in {0, 1} else None
    if not isinstance(other, Tensor) or not (other.is_floating_point() or other.dtype == torch.bool):
        return None
    if bool((other == 1).all()):
        return None
    return one.node if joint_shape(other, value) == value.shape else _fitted(one, value)


def _fitted(one: Known, value: Tensor) -> ast.expr | None:
    """With dimensions of one behind, where a value has one number for each row of another one."""
    other = one.value
    missing = value.dim() - other.dim()
    if other.dim() == 0 or missing <= 0 or tuple(other.shape) != tuple(value.shape[: other.dim()]):
        return None
    nones = ", ".join(["None"] * missing)
    return expression(f"p[(..., {nones})]" if missing > 1 else "p[..., None]", p=one.node)
