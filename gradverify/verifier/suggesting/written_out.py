"""How torch's fused operations are written in ordinary ones: where its own way is long, a shorter one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table


def _tanh_backward(grad_output: Tensor, output: Tensor) -> Tensor:
    return grad_output * (1 - output * output)


def _sigmoid_backward(grad_output: Tensor, output: Tensor) -> Tensor:
    return grad_output * (output * (1 - output))


def _softmax_backward(grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:  # noqa: ARG001
    return output * (grad_output - (grad_output * output).sum(dim, keepdim=True))


def _log_softmax_backward(grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:  # noqa: ARG001
    return grad_output - output.exp() * grad_output.sum(dim, keepdim=True)


def _threshold_backward(grad_output: Tensor, output: Tensor, threshold: float) -> Tensor:
    return grad_output * (output > threshold)


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


def written_out() -> dict[Any, Any]:
    """How torch's fused backwards are written in ordinary operations."""
    aten = torch.ops.aten
    table = {
        op: rule
        for op, rule in decomposition_table.items()
        if "_backward" in str(op) and "convolution" not in str(op) and "slice" not in str(op)
    }
    table |= {
        aten.tanh_backward.default: _tanh_backward,
        aten.sigmoid_backward.default: _sigmoid_backward,
        aten._softmax_backward_data.default: _softmax_backward,  # noqa: SLF001 - torch's own names
        aten._log_softmax_backward_data.default: _log_softmax_backward,  # noqa: SLF001
        aten.threshold_backward.default: _threshold_backward,
        aten.embedding_dense_backward.default: _embedding_backward,
        aten.native_layer_norm.default: _layer_norm,
    }
    return table
