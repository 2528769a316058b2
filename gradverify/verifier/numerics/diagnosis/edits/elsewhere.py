"""Expressions that backward or forward has, in the place of another one, as a factor, or as a term."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gradverify.verifier.numerics.diagnosis.edits.difference import difference, is_shortened
from gradverify.verifier.numerics.diagnosis.edits.edit import Edit, expression
from gradverify.verifier.numerics.diagnosis.edits.known import Known, Value, joint_shape
from gradverify.verifier.numerics.diagnosis.edits.source import Slot

FACTORS = ("e * p", "e / p", "e * (1 - p)", "e * p ** 2", "e * (1 - p ** 2)")
"""How a factor may be lost."""

FACTORS_OF_EXPRESSIONS = ("e * p", "e / p")


def replaced(slot: Slot, value: Value, known: list[Known]) -> Iterator[Edit]:
    """Another value of the same kind."""
    if not isinstance(value, Tensor):
        return
    assert isinstance(slot.node, ast.expr)  # noqa: S101
    own = ast.unparse(slot.node)
    for one in known:
        other = one.value
        if not isinstance(other, Tensor) or one.text == own or other.dtype != value.dtype:
            continue
        if other.shape == value.shape:
            if not torch.equal(other, value) or not one.is_name:
                yield Edit(slot, one.node, _cause_of(slot.node, one, value, known))
        elif (fitted := _fitted(one, value)) is not None and one.is_name:
            yield Edit(slot, fitted, _cause_of(slot.node, one, value, known))


def _cause_of(node: ast.expr, one: Known, value: Tensor, known: Sequence[Known]) -> str:
    if value.dtype == torch.bool:
        return "branch"
    if not (value.is_floating_point() or value.is_complex()):
        return "permuted"
    if is_shortened(node) and not is_shortened(one.node):
        return "float32-inside"
    if named := difference(node, one.node):
        return named
    own = next((k for k in known if isinstance(node, ast.Name) and k.text == node.id), None)
    return "wrong-saved" if one.is_saved and own is not None and own.is_saved else "operand"


def multiplied(slot: Slot, value: Value, known: list[Known], *, names: bool) -> Iterator[Edit]:
    """With one more factor."""
    if not _is_summand(slot) or not isinstance(value, Tensor) or not value.is_floating_point():
        return
    assert isinstance(slot.node, ast.expr)  # noqa: S101
    for one in known:
        factor = _factor(one, value) if one.is_name == names else None
        if factor is not None and one.is_bounded:
            yield Edit(slot, expression("e * (p > 0)", e=slot.node, p=factor), "branch")
        for text in (FACTORS if names else FACTORS_OF_EXPRESSIONS) if factor is not None else ():
            cause = _cause_of_factor(one)
            if cause == "operand" and text not in FACTORS_OF_EXPRESSIONS:
                cause = "chain-factor"  # the derivative of something
            yield Edit(slot, expression(text, e=slot.node, p=factor), cause)  # type: ignore[arg-type]


def added(slot: Slot, value: Value, known: list[Known]) -> Iterator[Edit]:
    """With one more term."""
    if not _is_summand(slot) or not isinstance(value, Tensor) or not value.is_floating_point():
        return
    assert isinstance(slot.node, ast.expr)  # noqa: S101
    for one in known:
        other = one.value
        is_number = type(other) is float and other != 0
        is_tensor = isinstance(other, Tensor) and other.is_floating_point()
        if is_number or (is_tensor and _are_summed(other, value, slot)):
            for text in ("e + p", "e - p"):
                yield Edit(slot, expression(text, e=slot.node, p=one.node), "missing-term")


def centred(slot: Slot, value: Value, known: list[Known]) -> Iterator[Edit]:
    """Without its mean that others weigh, as behind a softmax, or its part along others."""
    if not _is_summand(slot) and not isinstance(slot.parent, ast.BinOp):
        return
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim() == 0:
        return
    assert isinstance(slot.node, ast.expr)  # noqa: S101
    for one in known:
        other = one.value
        if isinstance(other, Tensor) and other.is_floating_point() and other.shape == value.shape:
            for dim in (d - value.dim() for d, n in enumerate(value.shape) if n > 1):
                for text in CENTRED:
                    changed = expression(text.format(dim), e=slot.node, p=one.node)
                    yield Edit(slot, changed, "missing-term")


CENTRED = (
    "e - (p * e).sum({}, keepdim=True)",
    "e - p * (p * e).sum({}, keepdim=True)",
    "e - p * e.sum({}, keepdim=True)",
)
"""What is left where a distribution, or a direction, takes its part."""


def _are_summed(one: Tensor, value: Tensor, slot: Slot) -> bool:
    """Whether two tensors have one shape, or the sum has the shape of one of them and stands in brackets."""
    if one.shape == value.shape:
        return True
    return joint_shape(one, value) in {one.shape, value.shape} and isinstance(slot.node, ast.BinOp | ast.Call)


def _cause_of_factor(one: Known) -> str:
    """A mask that is left out is a condition; what backward is given is an operand, as if it were ones."""
    value = one.value
    if isinstance(value, Tensor) and bool(((value == 0) | (value == 1)).all()):
        return "branch"
    is_given = one.is_saved or isinstance(one.node, ast.Attribute)
    return "operand" if is_given else "chain-factor"


SUMMING = frozenset({"sum", "mean", "cumsum"})
"""Methods of a value within which a factor is another one than around them."""


def _is_summand(slot: Slot) -> bool:
    """Whether a factor here is one of a whole term: within a product it would be the same further out."""
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
    return expression(
        f"p[(..., {', '.join(['None'] * missing)})]" if missing > 1 else "p[..., None]", p=one.node
    )
