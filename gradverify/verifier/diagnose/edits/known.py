"""What a backward has at hand, and in which places it may be meant: names, what ctx holds, sizes."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier.diagnose.edits.edit import Edit, expression
from gradverify.verifier.diagnose.edits.source import Slot, Source

OF_TORCH = frozenset(
    {
        "saved_tensors",
        "needs_input_grad",
        "saved_for_forward",
        "save_for_backward",
        "mark_dirty",
        "mark_non_differentiable",
        "set_materialize_grads",
    }
)
"""What torch keeps on a ctx."""

SIZES_ALIKE = 2
"""Sizes of one value that are tried: more are mostly the same."""

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

Value = Any


@dataclass(frozen=True)
class Known:
    """A name, an attribute of ctx, or a size, that may stand elsewhere."""

    text: str
    node: ast.expr
    value: Value
    is_saved: bool
    """Whether it is one of what `ctx.saved_tensors` holds."""


def known_in(
    source: Source,
    forward: Sequence[Source],
    names: Mapping[str, Value],
    ctx: Any,  # noqa: ANN401 - torch's
) -> list[Known]:
    """What may stand elsewhere; `names` are backward's."""
    own = {name: value for name, value in names.items() if name != source.context and name[0] != "_"}
    kept = [a for one in (source, *forward) for a in _attributes(one) if hasattr(ctx, a)]
    held = {f"{source.context}.{a}": getattr(ctx, a) for a in kept}
    saved = _saved(source.tree)
    return [
        Known(text, ast.parse(text, mode="eval").body, as_it_is(value), text in saved)
        for text, value in {**own, **held, **_sizes(own)}.items()
        if isinstance(value, int | float | complex)
        or (isinstance(value, Tensor) and value.layout is torch.strided)
    ]


def as_it_is(value: Value) -> Value:
    """A value as it is now."""
    return value.detach().clone() if isinstance(value, Tensor) else value


def joint_shape(one: Tensor, other: Tensor) -> tuple[int, ...] | None:
    """The shape of two tensors broadcast together; None where they do not go together.

    `torch.broadcast_shapes` imports SymPy first, for a second.
    """
    pairs = itertools.zip_longest(reversed(one.shape), reversed(other.shape), fillvalue=1)
    sizes = [(a if b == 1 else b, a == b or 1 in {a, b}) for a, b in pairs]
    return tuple(n for n, _ in reversed(sizes)) if all(fits for _, fits in sizes) else None


def _saved(tree: ast.AST) -> set[str]:
    """Names that backward gives to what was saved."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[target], value=ast.Attribute(attr="saved_tensors")):
                found |= {name.id for name in ast.walk(target) if isinstance(name, ast.Name)}
            case _:
                pass
    return found


def _attributes(source: Source) -> list[str]:
    """What is kept on the ctx, by forward or by backward."""
    nodes = [node for node in ast.walk(source.whole) if isinstance(node, ast.Attribute)]
    return [
        node.attr
        for node in nodes
        if isinstance(node.value, ast.Name) and node.value.id == source.context and node.attr not in OF_TORCH
    ]


def _sizes(names: Mapping[str, Value]) -> dict[str, int]:
    """Sizes of tensors, each value a few times."""
    found: dict[str, int] = {}
    for name, value in names.items():
        for dim, n in enumerate(value.shape) if isinstance(value, Tensor) else ():
            if n > 1 and list(found.values()).count(n) < SIZES_ALIKE:
                found[f"{name}.shape[{dim}]"] = n
    return found


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
        node = _as_wide(one, value)
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
    return _as_wide(one, value)


def _as_wide(one: Known, value: Tensor) -> ast.expr | None:
    """A tensor as an expression that is broadcast to the shape of a value; None where it cannot be."""
    return one.node if joint_shape(one.value, value) == value.shape else _fitted(one, value)


def _fitted(one: Known, value: Tensor) -> ast.expr | None:
    """With dimensions of one behind, where a value has one number for each row of another one."""
    other = one.value
    missing = value.dim() - other.dim()
    if other.dim() == 0 or missing <= 0 or tuple(other.shape) != tuple(value.shape[: other.dim()]):
        return None
    nones = ", ".join(["None"] * missing)
    return expression(f"p[(..., {nones})]" if missing > 1 else "p[..., None]", p=one.node)
