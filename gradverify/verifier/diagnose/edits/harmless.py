"""Whether a backward may be run with a change in it: it computes with tensors, and does nothing else.

Edited code sees other values and indices than its author meant. Ordinary tensor operations raise at worst; a
kernel of the user's may read foreign memory, a `while` may never end, and what is written outside of the
function stays.
"""

from __future__ import annotations

import ast
import builtins
import inspect
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor

from gradverify.source import definition, parameters_of, root_name

BUILTINS = frozenset(
    name
    for names in (
        "range len zip enumerate sum min max abs float int bool tuple list reversed slice isinstance",
        "sorted any all map dict round pow complex",
    )
    for name in names.split()
)
"""Builtin functions that do nothing but compute."""

OF_LISTS = frozenset(
    {"append", "items", "values", "keys", "insert", "extend", "pop", "copy", "reverse", "get"}
)
"""Methods of lists and dictionaries."""

REFUSED = (
    ast.While,
    ast.Try,
    ast.Global,
    ast.Import,
    ast.ImportFrom,
    ast.Delete,
    ast.Await,
    ast.Yield,
    ast.YieldFrom,
    ast.ClassDef,
    ast.AsyncFunctionDef,
    ast.Raise,
)
"""What a backward that is edited does not have."""

BEYOND_TENSORS = (
    "torch._ops",
    "torch.ops",
    "torch.utils",
    "torch.serialization",
    "torch.hub",
    "torch.distributed",
    "torch.multiprocessing",
    "torch.cuda",
)
"""Modules of torch that load, compile, or reach other processes and devices."""

DEEPEST = 4
"""Functions that call one another up to which the user's own are read."""


def is_harmless(function: FunctionType, tree: ast.AST, depth: int = 0) -> bool:
    """Whether all that a function does is computing with tensors, also in the functions that it calls."""
    local = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    own = parameters_of(tree) if depth == 0 and isinstance(tree, ast.FunctionDef) else ()
    context = own[0] if own else ""
    for node in ast.walk(tree):
        if isinstance(node, REFUSED):
            return False
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and root_name(node) != context:
            return False
        if _written(node) and resolved(ast.Name(_written(node), ast.Load()), function) is not None:
            return False
        if isinstance(node, ast.Call):
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            called = [node.func, *(g for g in given if _is_function(resolved(g, function)))]
            if not all(_may_be_called(func, function, local, depth) for func in called):
                return False
    return True


def _written(node: ast.AST) -> str:
    """The name of what a node writes into; empty where it writes into nothing."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return root_name(node)
    in_place = (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_")
    )
    return root_name(node.func) if in_place and isinstance(node, ast.Call) else ""


def _is_function(value: Any) -> bool:  # noqa: ANN401
    """Whether what is handed to a function may be called there."""
    return callable(value) and not isinstance(value, type)


def _may_be_called(func: ast.expr, function: FunctionType, local: set[str], depth: int) -> bool:
    if isinstance(func, ast.Name) and func.id in local:
        return True
    found = resolved(func, function)
    if found is None:
        # A method of a value: of a tensor, or of a list. What the value is, is seen when it runs.
        return isinstance(func, ast.Attribute) and (hasattr(Tensor, func.attr) or func.attr in OF_LISTS)
    if isinstance(func, ast.Name) and getattr(builtins, func.id, None) is found:
        return func.id in BUILTINS
    owner = resolved(func.value, function) if isinstance(func, ast.Attribute) else None
    if isinstance(owner, type) and not owner.__module__.startswith("torch") and not _is_own(found):
        return False  # `Other.apply` is torch's, and runs what the user wrote
    return computes(found, depth)


def computes(found: Any, depth: int) -> bool:  # noqa: ANN401
    """Whether a function that is no method does nothing but compute."""
    module = getattr(found, "__module__", "") or ""
    if module == "math" or _is_torchs(found, module):
        return True
    plain = inspect.unwrap(found) if callable(found) else found
    if not isinstance(plain, FunctionType) or depth >= DEEPEST:
        return False
    tree = definition(plain)
    return tree is not None and is_harmless(plain, tree, depth + 1)


def _is_own(found: Any) -> bool:  # noqa: ANN401
    return isinstance(inspect.unwrap(found), FunctionType) if callable(found) else False


def _is_torchs(found: Any, module: str) -> bool:  # noqa: ANN401
    """A function of torch: of its operations, not one that loads or compiles, nor a custom operator."""
    if module.startswith(BEYOND_TENSORS):
        return False
    if isinstance(found, type):
        return found in {torch.no_grad, torch.enable_grad, torch.Tensor}
    is_builtin = inspect.isbuiltin(found) or type(found).__name__ == "builtin_function_or_method"
    of_torch = module == "torch" or module.startswith("torch.")
    return of_torch or (is_builtin and hasattr(torch, getattr(found, "__name__", "")))


def resolved(expression: ast.expr, function: FunctionType) -> Any:  # noqa: ANN401
    """What a dotted name that is no local one stands for; None for anything else."""
    if isinstance(expression, ast.Attribute):
        owner = resolved(expression.value, function)
        known = isinstance(owner, ModuleType | type)
        return getattr(owner, expression.attr, None) if known else None
    if not isinstance(expression, ast.Name):
        return None
    name = expression.id
    if name in function.__code__.co_varnames or name in function.__code__.co_cellvars:
        return None
    if name in function.__code__.co_freevars:
        cell = (function.__closure__ or ())[function.__code__.co_freevars.index(name)]
        try:
            return cell.cell_contents
        except ValueError:
            return None
    return function.__globals__.get(name, getattr(builtins, name, None))
