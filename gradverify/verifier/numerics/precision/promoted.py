"""A recorded computation in a native dtype, as the same computation in float64.

A forward that refuses float64, or casts to float32 inside, has no float64 path of its own; the operations it
runs have one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils import _pytree

_WIDE = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}

_WIDENING = (torch.ops.aten._softmax.default, torch.ops.aten._log_softmax.default)  # noqa: SLF001 - operators
"""Operators whose third argument says that they turn float16 into float32."""


def promoted(graph: GraphModule) -> GraphModule:
    """Let every operation of a graph run in float64, in place; its floating inputs must be float64 then."""
    for node in graph.graph.nodes:
        if node.op == "call_function":
            node.args = _pytree.tree_map(_wide, node.args)
            node.kwargs = _pytree.tree_map(_wide, dict(node.kwargs))
            if node.target in _WIDENING:
                node.args = (*node.args[:2], False)
        elif node.op == "get_attr":
            _promote_constant(graph, str(node.target))
    graph.recompile()
    return graph


def _wide(value: Any) -> Any:  # noqa: ANN401 - whatever an operation is given
    return _WIDE.get(value, value) if isinstance(value, torch.dtype) else value


def _promote_constant(graph: GraphModule, name: str) -> None:
    constant = getattr(graph, name, None)
    if isinstance(constant, Tensor) and constant.dtype in _WIDE:
        setattr(graph, name, constant.to(_WIDE[constant.dtype]))
