"""Expressions of backward and forward that may stand in other places, with what they come to."""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier.diagnose.edits.edit import filled
from gradverify.verifier.diagnose.edits.harmless import is_harmless
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

LONGEST = 90
"""Characters of an expression that may stand elsewhere, too."""

MOST_EXPRESSIONS = 60
"""Expressions that are tried elsewhere."""

SIZES_ALIKE = 2
"""Sizes of one value that are tried: more are mostly the same."""

BOUNDING = frozenset({"relu", "relu_", "clamp", "clamp_min", "clip"})
"""Functions that are flat on one side."""

Value = Any


@dataclass(frozen=True)
class Known:
    """An expression that may stand elsewhere, with what it comes to."""

    text: str
    node: ast.expr
    value: Value
    is_name: bool
    """A name, an attribute of ctx, or a size: nothing that is computed."""
    is_saved: bool = False
    """Whether it is one of what `ctx.saved_tensors` holds."""
    is_bounded: bool = False
    """Whether a `relu` or the like is taken of it."""


def known_in(
    source: Source,
    forward: Sequence[Source],
    names: Mapping[str, Value],
    ctx: Any,  # noqa: ANN401 - torch's
) -> list[Known]:
    """The names, attributes, sizes and expressions that may stand elsewhere; `names` are backward's."""
    attributes = {a: getattr(ctx, a) for a in attributes_in([source, *forward], source) if hasattr(ctx, a)}
    own = {name: value for name, value in names.items() if name != source.context and name[0] != "_"}
    plain = {**own, **{f"{source.context}.{a}": value for a, value in attributes.items()}, **_sizes(own)}
    found = {text: _known(text, value, is_name=True) for text, value in plain.items() if _is_kept(value)}
    bounded: set[str] = set()
    scope = {**names, source.context: ctx}
    for node in _expressions(source, forward):
        given = _with_attributes(node, set(attributes) - set(names), source)
        text = ast.unparse(given)
        if len(text) > LONGEST:
            continue
        bounded |= _bounded_in(given)
        if len(found) > MOST_EXPRESSIONS or text in found:
            continue
        value = _evaluated(text, source, scope)
        if isinstance(value, Tensor) and _is_kept(value):
            found[text] = _known(text, value, is_name=False)
    saved = _saved(source.tree)
    return [replace(k, is_saved=k.text in saved, is_bounded=k.text in bounded) for k in found.values()]


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


def kept(value: Value) -> Value:
    """A value as it is now."""
    return value.detach().clone() if isinstance(value, Tensor) else value


def joint_shape(one: Tensor, other: Tensor) -> tuple[int, ...] | None:
    """The shape of two tensors broadcast together; None where they do not go together.

    `torch.broadcast_shapes` imports SymPy first, for a second.
    """
    pairs = itertools.zip_longest(reversed(one.shape), reversed(other.shape), fillvalue=1)
    sizes = [(a if b == 1 else b, a == b or 1 in {a, b}) for a, b in pairs]
    return tuple(n for n, _ in reversed(sizes)) if all(fits for _, fits in sizes) else None


def _known(text: str, value: Value, *, is_name: bool) -> Known:
    return Known(text, ast.parse(text, mode="eval").body, kept(value), is_name)


def _is_kept(value: Value) -> bool:
    is_number = isinstance(value, int | float | complex)
    return is_number or (isinstance(value, Tensor) and value.layout is torch.strided)


def _sizes(names: Mapping[str, Value]) -> dict[str, int]:
    """Sizes of tensors, each value a few times."""
    found: dict[str, int] = {}
    for name, value in names.items():
        for dim, n in enumerate(value.shape) if isinstance(value, Tensor) else ():
            if n > 1 and list(found.values()).count(n) < SIZES_ALIKE:
                found[f"{name}.shape[{dim}]"] = n
    return found


def attributes_in(sources: Sequence[Source], own: Source) -> list[str]:
    """What is kept on the ctx, by forward or by backward."""
    found: dict[str, None] = {}
    for source in sources:
        for node in ast.walk(source.whole):
            match node:
                case ast.Attribute(value=ast.Name(id=name), attr=attribute) if attribute not in OF_TORCH:
                    if name in {source.context, own.context}:
                        found[attribute] = None
                case _:
                    pass
    return list(found)


def _expressions(source: Source, forward: Sequence[Source]) -> Iterator[ast.expr]:
    """What is computed in backward, then in forward."""
    kinds = ast.BinOp | ast.Call | ast.UnaryOp | ast.Compare | ast.Subscript
    for one in (source, *forward):
        for node in ast.walk(one.whole):
            loaded = isinstance(node, kinds) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
            if loaded and isinstance(node, ast.expr) and is_harmless(one.function, node):
                yield node


def _with_attributes(node: ast.expr, names: set[str], source: Source) -> ast.expr:
    """An expression of forward, where what it calls `margin` is `ctx.margin` in backward."""
    held = {name: ast.Attribute(ast.Name(source.context, ast.Load()), name, ast.Load()) for name in names}
    return filled(copy.deepcopy(node), held)


def _bounded_in(node: ast.expr) -> set[str]:
    """What such a function is taken of."""
    found = set()
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in BOUNDING:
            found |= {ast.unparse(call.func.value), *(ast.unparse(argument) for argument in call.args[:1])}
    return found


def _evaluated(text: str, source: Source, names: Mapping[str, Value]) -> Value:
    """What an expression comes to with these names; None where it does not."""
    if "_(" in text:
        return None  # it writes into what it gets
    try:
        return eval(text, dict(source.function.__globals__), dict(names))  # noqa: S307 - the user's own code
    except Exception:  # noqa: BLE001 - the names may stand for anything
        return None
