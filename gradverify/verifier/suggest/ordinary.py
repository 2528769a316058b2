"""What torch's derivative formulas call by private names, in the operations that a person writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

from gradverify.verifier.suggest.graph import ZEROS, Builder, Node

aten = torch.ops.aten


def _addmm(builder: Builder, node: Node) -> Node:
    product = builder.made(replace(node, op="mm", args=node.args[1:3], kwargs=(), target=aten.mm.default))
    return builder.made(
        replace(node, op="add", args=(product, node.args[0]), kwargs=(), target=aten.add.Tensor)
    )


def _number(builder: Builder, node: Node) -> Node:
    return builder.kept(Node("literal", node.args[:1], dtype=node.dtype))


def _copy(builder: Builder, node: Node) -> Node | None:
    source: Node = node.args[1]
    if source.dtype != node.dtype or source.shape == node.shape:
        return source if source.dtype == node.dtype else None
    expand = aten.expand.default
    return builder.made(Node("expand", (source, node.shape), (), node.shape, node.dtype, expand))


def _slice_backward(builder: Builder, node: Node) -> Node | None:
    grad, _, dim, start, end, step = node.args
    if grad.op in ZEROS:
        return builder.kept(Node("zeros", (node.shape,), (), node.shape, node.dtype))
    return _padded(builder, grad, (dim, start, end, step), node.shape)


def _slice_scatter(builder: Builder, node: Node) -> Node | None:
    into, source, *given = node.args
    defaults = [0, None, None, 1]
    place = (*given, *defaults[len(given) :])
    return _padded(builder, source, place, node.shape) if into.op in ZEROS else None


def _padded(builder: Builder, source: Node, place: tuple[Any, ...], shape: tuple[int, ...]) -> Node | None:
    """A part with zeros around it, where it is one piece."""
    dim, start, end, step = place
    size, dim = shape[dim], dim % len(shape)
    first, last, _ = slice(start, end, step).indices(size)
    if step != 1 or last - first != source.shape[dim] or source.shape == shape:
        return source if source.shape == shape else None
    pads = (0, 0) * (len(shape) - dim - 1) + (first, size - last)
    target = aten.constant_pad_nd.default
    return builder.kept(Node("constant_pad_nd", (source, pads), (), shape, source.dtype, target))


def _index_put(builder: Builder, node: Node) -> Node | None:
    """Along one dimension an `index_add`."""
    into, indices, values, *accumulate = node.args
    given = [(k, index) for k, index in enumerate(indices) if index is not None]
    if len(given) != 1 or accumulate != [True] or values.dtype != node.dtype:
        return None
    dim, index = given[0]
    expected = (*node.shape[:dim], *index.shape, *node.shape[dim + 1 :])
    if len(index.shape) != 1 or index.dtype not in {torch.int32, torch.int64} or values.shape != expected:
        return None
    args, target = (into, dim, index, values), aten.index_add.default
    return builder.kept(Node("index_add", args, (), node.shape, node.dtype, target))


RULES: dict[str, Callable[[Builder, Node], Node | None]] = {
    "addmm": _addmm,
    "scalar_tensor": _number,
    "copy": _copy,
    "slice_backward": _slice_backward,
    "slice_scatter": _slice_scatter,
    "index_put": _index_put,
    "_unsafe_index_put": _index_put,
}


def _softmax_backward(grad_output: Tensor, output: Tensor, dim: int, _: torch.dtype) -> Tensor:
    return output * (grad_output - (grad_output * output).sum(dim, keepdim=True))


def _log_softmax_backward(grad_output: Tensor, output: Tensor, dim: int, _: torch.dtype) -> Tensor:
    return grad_output - output.exp() * grad_output.sum(dim, keepdim=True)


def _embedding_backward(
    grad_output: Tensor,
    index: Tensor,
    rows: int,
    padding: int,
    scale_by_frequency: bool,  # noqa: FBT001 - the signature of torch's operation
) -> Tensor:
    if scale_by_frequency:
        raise NotImplementedError("an embedding that scales its gradient by frequency")
    if padding >= 0:
        grad_output = grad_output.masked_fill((index == padding).unsqueeze(-1), 0)
    width = grad_output.shape[-1]
    table = grad_output.new_zeros(rows, width)
    return table.index_add(0, index.reshape(-1), grad_output.reshape(-1, width))


def _layer_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = list(range(-len(shape), 0))
    mean = x.mean(dims, keepdim=True)
    inverse_std = ((x - mean) ** 2).mean(dims, keepdim=True).add(eps).rsqrt()
    y = (x - mean) * inverse_std
    if weight is not None:
        y = y * weight
    return (y if bias is None else y + bias), mean, inverse_std


def decompositions() -> dict[Any, Any]:
    """How torch's fused operations are written in ordinary ones: where torch's own way is long, a shorter."""
    table = {
        op: rule
        for op, rule in decomposition_table.items()
        if "_backward" in str(op) and "convolution" not in str(op) and "slice" not in str(op)
    }
    return table | {
        aten.tanh_backward.default: lambda g, y: g * (1 - y * y),
        aten.sigmoid_backward.default: lambda g, y: g * (y * (1 - y)),
        aten._softmax_backward_data.default: _softmax_backward,  # noqa: SLF001 - torch's own names
        aten._log_softmax_backward_data.default: _log_softmax_backward,  # noqa: SLF001
        aten.threshold_backward.default: lambda g, y, threshold: g * (y > threshold),
        aten.embedding_dense_backward.default: _embedding_backward,
        aten.native_layer_norm.default: _layer_norm,
    }
