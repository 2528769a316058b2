"""User code as a graph of functional operations, recorded while it runs on real tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functionalize
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

CUTS = (torch.ops.aten.detach.default, torch.ops.aten.detach_.default)
"""Operations that return their input's values and stop its gradient."""


def recorded_graph(function: Callable[..., Any], tensors: Sequence[Tensor]) -> GraphModule:
    """Record the operations that a function of tensors runs, those of autograd inside it too.

    Branches on data are recorded as taken. Raises whatever the function raises.
    """
    return make_fx(function, _error_on_data_dependent_ops=False)(*tensors)


def functional_graph(
    function: Callable[..., Any],
    tensors: Sequence[Tensor],
    written_out: Mapping[Any, Callable[..., Any]] | None = None,
) -> GraphModule:
    """Record the operations that a function of tensors runs, in-place ones as functional ones.

    Autograd is below it or has run already: `.data`, `no_grad` leave no trace. Branches on data are recorded
    as taken. `written_out` says how some operations are made of others. Raises whatever the function raises,
    and for operations that cannot be recorded.
    """
    table = dict(written_out or {})
    return make_fx(functionalize(function), table, _error_on_data_dependent_ops=False)(*tensors)


def without_cuts(graph: GraphModule) -> GraphModule:
    """The same graph, with gradients flowing through what forward had detached, and its inputs untouched."""
    for node in list(graph.graph.nodes):
        if node.op == "call_function" and node.target in CUTS:
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
        elif node.op == "call_function" and node.target is torch.ops.aten.copy_.default:
            # What a functional graph writes back into its inputs is nobody's but the caller's.
            node.replace_all_uses_with(node.args[1])
            graph.graph.erase_node(node)
    graph.recompile()
    return graph
