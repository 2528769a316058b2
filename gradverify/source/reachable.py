"""The part of a module that one of its targets uses, by name, and whether that is about complex numbers.

Whether a target communicates with other ranks: a call of `torch.distributed` in its module.
"""

from __future__ import annotations

import ast

from gradverify.model import Target
from gradverify.source.module import module_of
from gradverify.source.tree import dotted, each, last_name

COMPLEX_WORDS = frozenset(
    {"conj", "conj_physical", "resolve_conj", "mH", "vdot"}
    | {"view_as_complex", "view_as_real", "imag", "is_complex"}
    | {"complex", "complex32", "complex64", "complex128", "chalf", "cfloat", "cdouble"}
)
"""Attributes and names that only complex tensors need; not those with another meaning, too (`angle`)."""


def uses_complex(source: str, attribute: str) -> bool:
    """Whether a target, or what it uses of its module, names such an operation, dtype or annotation.

    `attribute` is how the module calls the target; False where the source cannot be read.
    """
    behind = module_of(source).behind(attribute)
    return any(_word(node) in COMPLEX_WORDS for statement in behind for node in ast.walk(statement))


def _word(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)  # an annotation in quotes
    return last_name(node)


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
    module = module_of(source)
    names = module.imported
    for statement in module.behind(target.attribute) if "distributed" in source else ():
        for call in each(ast.Call, statement):
            home, _, name = dotted(call.func, names).rpartition(".")
            if f"{home}.".startswith(HOME) and name in COLLECTIVES:
                return f"it calls {ast.unparse(call.func)}, line {call.lineno}"
    group = next((p.name for p in target.parameters if p.name in GROUPS), "")
    imported = any(f"{name}.".startswith(HOME) for name in names.values())
    return f"it takes a process group, `{group}`" if group and imported else ""
