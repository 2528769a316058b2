"""What torch's derivative formulas call by private names, in the operations that a person writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from gradverify.verifier.suggesting.node import ZEROS, Node

Kwargs = tuple[tuple[str, Any], ...]


class Maker(Protocol):
    """What makes nodes: simplified ones, and ones that stay as they are."""

    def make(
        self,
        op: str,
        args: tuple[Any, ...],
        kwargs: Kwargs,
        shape: tuple[int, ...],
        dtype: torch.dtype | None,
        target: Any = None,  # noqa: ANN401
    ) -> Node:
        """A node, simplified."""

    def plain(
        self,
        op: str,
        args: tuple[Any, ...],
        shape: tuple[int, ...],
        dtype: torch.dtype | None,
        target: Any = None,  # noqa: ANN401
    ) -> Node:
        """A node as it is."""


def in_ordinary_operations(
    maker: Maker, op: str, args: tuple[Any, ...], shape: tuple[int, ...], dtype: torch.dtype | None
) -> Node | None:
    """The same in more ordinary operations; None for what is ordinary."""
    rule = _RULES.get(op)
    return None if rule is None else rule(maker, args, shape, dtype)


def _addmm(maker: Maker, args: tuple[Any, ...], shape: tuple[int, ...], dtype: Any) -> Node | None:  # noqa: ANN401
    product = maker.make("mm", args[1:3], (), shape, dtype, torch.ops.aten.mm.default)
    return maker.make("add", (product, args[0]), (), shape, dtype, torch.ops.aten.add.Tensor)


def _number(maker: Maker, args: tuple[Any, ...], shape: tuple[int, ...], dtype: Any) -> Node | None:  # noqa: ANN401, ARG001
    return maker.plain("literal", args[:1], (), dtype)


def _copy(maker: Maker, args: tuple[Any, ...], shape: tuple[int, ...], dtype: Any) -> Node | None:  # noqa: ANN401
    source = args[1]
    if source.dtype != dtype:
        return None
    if source.shape == shape:
        return source  # type: ignore[no-any-return]
    return maker.make("expand", (source, shape), (), shape, dtype, torch.ops.aten.expand.default)


def _slice_backward(
    maker: Maker,
    args: tuple[Any, ...],
    shape: tuple[int, ...],
    dtype: Any,  # noqa: ANN401
) -> Node | None:
    grad, _, dim, start, end, step = args
    if grad.op in ZEROS:
        return maker.plain("zeros", (shape,), shape, dtype)
    return _padded(maker, grad, dim, start, end, step, shape)


def _slice_scatter(
    maker: Maker,
    args: tuple[Any, ...],
    shape: tuple[int, ...],
    dtype: Any,  # noqa: ANN401, ARG001
) -> Node | None:
    into, source, *given = args
    defaults: list[Any] = [0, None, None, 1]
    dim, start, end, step = given + defaults[len(given) :]
    return _padded(maker, source, dim, start, end, step, shape) if into.op in ZEROS else None


def _padded(
    maker: Maker,
    source: Node,
    dim: int,
    start: int | None,
    end: int | None,
    step: int,
    shape: tuple[int, ...],
) -> Node | None:
    """A part with zeros around it, where it is one piece."""
    size, dim = shape[dim], dim % len(shape)
    first, last, _ = slice(start, end, step).indices(size)
    if step != 1 or last - first != source.shape[dim] or source.shape == shape:
        return None if source.shape != shape else source
    pads: tuple[int, ...] = (0, 0) * (len(shape) - dim - 1) + (first, size - last)
    target = torch.ops.aten.constant_pad_nd.default
    return maker.plain("constant_pad_nd", (source, pads), shape, source.dtype, target)


def _index_put(maker: Maker, args: tuple[Any, ...], shape: tuple[int, ...], dtype: Any) -> Node | None:  # noqa: ANN401
    """Along one dimension an `index_add`."""
    into, indices, values, *accumulate = args
    given = [(k, index) for k, index in enumerate(indices) if index is not None]
    if len(given) != 1 or accumulate != [True] or values.dtype != dtype:
        return None
    dim, index = given[0]
    expected = (*shape[:dim], *index.shape, *shape[dim + 1 :])
    if len(index.shape) != 1 or index.dtype not in {torch.int32, torch.int64} or values.shape != expected:
        return None
    target = torch.ops.aten.index_add.default
    return maker.plain("index_add", (into, dim, index, values), shape, dtype, target)


def _select(maker: Maker, args: tuple[Any, ...], shape: tuple[int, ...], dtype: Any) -> Node | None:  # noqa: ANN401
    """The real or the imaginary part."""
    source, dim, index = args
    if source.op != "view_as_real" or dim % len(source.shape) != len(source.shape) - 1:
        return None
    return maker.plain(("real", "imag")[index], source.args[:1], shape, dtype)


def _view_as_complex(
    maker: Maker,
    args: tuple[Any, ...],
    shape: tuple[int, ...],
    dtype: Any,  # noqa: ANN401
) -> Node | None:
    """A complex tensor of which one part is zero."""
    made = args[0]
    if made.op != "select_scatter" or made.args[0].op not in ZEROS:
        return None
    _, part, dim, index = made.args
    if dim % len(made.shape) != len(made.shape) - 1 or part.shape != shape:
        return None
    return maker.plain(("real_alone", "imag_alone")[index], (part,), shape, dtype)


_RULES: dict[str, Callable[[Maker, tuple[Any, ...], tuple[int, ...], Any], Node | None]] = {
    "addmm": _addmm,
    "scalar_tensor": _number,
    "copy": _copy,
    "slice_backward": _slice_backward,
    "slice_scatter": _slice_scatter,
    "index_put": _index_put,
    "_unsafe_index_put": _index_put,
    "select": _select,
    "view_as_complex": _view_as_complex,
}
