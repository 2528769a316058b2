"""What a backward has at hand: names, attributes of its ctx, and sizes, with what they come to."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier.diagnose.edits.source import Source

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
