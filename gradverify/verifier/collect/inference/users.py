"""Who uses a target in its own file: module classes and helper functions, found in the source alone."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any

from torch import nn

from gradverify.model import Target
from gradverify.verifier.collect.inference.parsing import KEPT_TREES, tree_of

MOST_MODULES = 4
"""Module classes that are tried for one target."""

MOST_HELPERS = 4
"""Helper functions that are tried for one target, those nearest to it."""

FURTHEST = 2
"""Names between a target and what other files call: its wrapper, and the layer around that."""

NO_HELPERS = frozenset(
    {"open", "input", "print", "exit", "save", "load", "backward", "step", "zero_grad", "gradcheck"}
    | {"system", "Popen", "check_call", "check_output", "writelines", "mkdir", "makedirs", "sleep"}
)
"""Calls of functions that do more than compute: training, measuring, writing files. They are not run."""


def parsed_source(module: ModuleType | None) -> ast.Module:
    """The source of a file; of nothing where it cannot be had."""
    try:
        return tree_of(inspect.getsource(module) if module is not None else "")
    except (OSError, TypeError, SyntaxError, ValueError):
        return ast.Module([], [])


def modules_that_reach(target: Target, module: ModuleType | None, tree: ast.Module) -> list[type[nn.Module]]:
    """Module classes of the file whose source uses the target, directly or through its other names."""
    levels = _levels(target, tree)
    own = [v for n, v in vars(module).items() if n in levels and _is_own_module(v, module)]
    return sorted(dict.fromkeys(own), key=_line)[:MOST_MODULES]


def helpers_that_reach(target: Target, module: ModuleType | None, tree: ast.Module) -> list[FunctionType]:
    """Functions of the file that hand something to the target and return what comes of it, nearest first."""
    levels = _levels(target, tree)
    fit = {n.name for n in tree.body if isinstance(n, ast.FunctionDef) and _only_computes(n)}
    own = [
        (levels[name], _line(value), value)
        for name, value in vars(module).items()
        if name in levels and name in fit and _is_own_function(value, module)
    ]
    found = dict.fromkeys(value for *_, value in sorted(own, key=lambda row: row[:2]))
    return list(found)[:MOST_HELPERS]


def names_that_reach(target: Target, tree: ast.Module) -> frozenset[str]:
    """Names of the file by which the target, or what hands something to it, can be called from others."""
    levels = _levels(target, tree)
    return frozenset(name for name, level in levels.items() if level <= FURTHEST)


def _levels(target: Target, tree: ast.Module) -> dict[str, int]:
    """Names at the top of the file that use the target, by how many others stand between."""
    reached = {target.attribute.rpartition(".")[2]}
    levels = dict.fromkeys(reached, 0)
    users = _users_of(tree)
    while reached:
        level = levels[next(iter(reached))] + 1
        reached = {user for name in reached for user in users.get(name, ())} - levels.keys()
        levels |= dict.fromkeys(reached, level)
    return levels


@lru_cache(maxsize=KEPT_TREES)
def _users_of(tree: ast.Module) -> Mapping[str, set[str]]:
    """What the statements at the top of the file define, by each name that they use."""
    found: dict[str, set[str]] = {}
    for node in tree.body:
        for name in _used(node):
            found.setdefault(name, set()).update(_names(node))
    return found


def _names(node: ast.stmt) -> set[str]:
    """The names that a statement at the top of a file defines."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else []
    return {t.id for t in targets if isinstance(t, ast.Name)}


def _used(node: ast.stmt) -> set[str]:
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return names | {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}


def _is_own_module(value: Any, module: ModuleType | None) -> bool:  # noqa: ANN401
    is_module = isinstance(value, type) and issubclass(value, nn.Module)
    return is_module and value.__module__ == getattr(module, "__name__", "")


def _is_own_function(value: Any, module: ModuleType | None) -> bool:  # noqa: ANN401
    return inspect.isfunction(value) and value.__module__ == getattr(module, "__name__", "")


def _only_computes(definition: ast.FunctionDef) -> bool:
    """Whether a function takes something, returns something, and calls nothing that acts on the world."""
    takes = any(not _is_context(a.arg) for a in definition.args.args) and not any(
        _is_context(a.arg) for a in definition.args.args[:1]
    )
    returns = any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(definition))
    return takes and returns and not NO_HELPERS & set(_called(definition))


def _is_context(name: str) -> bool:
    return name in {"ctx", "self", "cls", "context"}


def _called(definition: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(definition):
        match node:
            case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
                yield name
            case _:
                continue


def _line(owner: type | FunctionType) -> int:
    try:
        return inspect.getsourcelines(owner)[1]
    except (OSError, TypeError):
        return 0
