"""Whether a target communicates with other ranks: a call of `torch.distributed` in its module."""

from __future__ import annotations

import ast

from gradverify.source.reachable import statements_behind
from gradverify.source.tree import dotted, imported_names, tree_of

HOME = "torch.distributed."

COLLECTIVES = frozenset(
    {"all_reduce", "all_gather", "all_gather_into_tensor", "all_to_all", "all_to_all_single", "broadcast"}
    | {"gather", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "all_reduce_coalesced"}
    | {"send", "recv", "isend", "irecv", "batch_isend_irecv", "all_gather_tensor", "permute_tensor"}
    | {"all_gather_tensor_autograd", "reduce_scatter_tensor_autograd", "all_to_all_single_autograd"}
    | {"all_gather_object", "broadcast_object_list", "barrier"}
)
"""Functions of `torch.distributed` and of what lies in it that wait for other ranks."""


def collective_of(source: str, attribute: str) -> str:
    """The first collective that a target calls: `dist.all_reduce, line 12`; empty without one.

    `attribute` is how the module calls the target. What another module calls is not seen.
    """
    if "distributed" not in source:
        return ""
    try:
        names = imported_names(tree_of(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    for statement in statements_behind(source, attribute):
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and _waits(dotted(node.func, names)):
                return f"{ast.unparse(node.func)}, line {node.lineno}"
    return ""


def _waits(name: str) -> bool:
    return name.startswith(HOME) and name.rpartition(".")[2] in COLLECTIVES
