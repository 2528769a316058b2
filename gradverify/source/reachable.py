"""The part of a module that one of its targets uses, by name, and whether that is about complex numbers.

Whether a target communicates with other ranks: a call of `torch.distributed` in its module.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from gradverify.model import Target
from gradverify.source.tree import dotted, imported_names, last_name, tree_of

COMPLEX_WORDS = frozenset(
    {"conj", "conj_physical", "resolve_conj", "mH", "vdot"}
    | {"view_as_complex", "view_as_real", "imag", "is_complex"}
    | {"complex", "complex32", "complex64", "complex128", "chalf", "cfloat", "cdouble"}
)
"""Attributes and names that only complex tensors need; not those with another meaning, too (`angle`)."""


@lru_cache(maxsize=1)
def _bindings(source: str) -> Mapping[str, Sequence[ast.stmt]]:
    """The statements of a module by the names that they bind, read once for all of its targets."""
    try:
        tree = tree_of(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    bound: dict[str, list[ast.stmt]] = {}
    for statement in _statements(tree.body):
        for target in _targets(statement):
            bound.setdefault(target, []).append(statement)
    return bound


def statements_behind(source: str, attribute: str) -> Iterator[ast.stmt]:
    """The statement that binds a target, and those that bind what it uses, as far as the module does.

    `attribute` is how the module calls it. None where the source cannot be read.
    """
    bound, name = _bindings(source), attribute.partition(".")[0]
    waiting, seen = [name], {name}
    while waiting:
        for statement in bound.get(waiting.pop(), ()):
            yield statement
            used = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)}
            waiting += sorted(used - seen)
            seen |= used


def uses_complex(source: str, attribute: str) -> bool:
    """Whether a target, or what it uses of its module, names such an operation, dtype or annotation.

    `attribute` is how the module calls the target; False where the source cannot be read.
    """
    nodes = (node for statement in statements_behind(source, attribute) for node in ast.walk(statement))
    return any(_word(node) in COMPLEX_WORDS for node in nodes)


def _word(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)  # an annotation in quotes
    return last_name(node)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module, also those under an `if` or a `try`."""
    for statement in body:
        yield statement
        for part in ("body", "orelse", "handlers", "finalbody"):
            if isinstance(statement, ast.If | ast.Try):
                for inner in getattr(statement, part, ()):
                    yield from _statements(inner.body if isinstance(inner, ast.ExceptHandler) else [inner])


def _targets(statement: ast.stmt) -> tuple[str, ...]:
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return (name,)
        case ast.Assign(targets=targets):
            return tuple(n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            return (name,)
        case _:
            return ()


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
