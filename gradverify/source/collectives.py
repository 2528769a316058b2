"""Whether a target communicates with other ranks: a call of `torch.distributed` in its module."""

from __future__ import annotations

import ast

from gradverify.model import Target
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

GROUPS = frozenset({"group", "process_group", "pg", "tp_group", "ep_group", "cp_group", "dp_group"})
"""What authors call a parameter that takes a process group."""


def communicates(source: str, target: Target) -> str:
    """Why a target runs on several ranks, as `it calls dist.all_reduce, line 12`; empty where it does not.

    A parameter with the name of a group counts in a module that imports `torch.distributed`: without a call
    of a collective it may be what is missing. What another module calls is not seen.
    """
    try:
        names = imported_names(tree_of(source)) if "distributed" in source else {}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        names = {}
    for statement in statements_behind(source, target.attribute) if names else ():
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and _waits(dotted(node.func, names)):
                return f"it calls {ast.unparse(node.func)}, line {node.lineno}"
    group = next((p.name for p in target.parameters if p.name in GROUPS), "")
    imported = any(f"{name}.".startswith(HOME) for name in names.values())
    return f"it takes a process group, `{group}`" if group and imported else ""


def _waits(name: str) -> bool:
    return name.startswith(HOME) and name.rpartition(".")[2] in COLLECTIVES
