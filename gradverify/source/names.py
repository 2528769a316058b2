"""What the names at the top of a module are: Functions, operators, and the plain version of a Function."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from gradverify.source.module import module_of
from gradverify.source.tree import bare_name, every_parameter, last_name

_OPERATORS = frozenset({"custom_op", "triton_op", "register_autograd"})
"""Calls that define an operator or its backward: `torch.library.custom_op(…)`, as a decorator or not."""

_WORTH_PARSING = re.compile(rb"Function|custom_op|triton_op|register_autograd|backward|vjp")

MARKS = ("ref", "reference", "torch", "pytorch", "naive", "composite", "slow", "python", "native", "eager")
"""What authors add to the name of the plain version."""


def may_define(source: bytes) -> bool:
    """Whether a file's text holds a Function subclass or a custom operator, or is no Python and may."""
    if not _WORTH_PARSING.search(source):
        return False
    module = module_of(source)
    if module.error is not None:
        return bool(re.search(rb"\bautograd\b|custom_op|triton_op|register_autograd", source))
    renamed = {one.alias for one in module.imports if one.name.endswith("Function")}
    return any(_defines(node, renamed) for node in ast.walk(module.tree))


def _defines(node: ast.AST, renamed: set[str]) -> bool:
    if not isinstance(node, ast.ClassDef):
        return bare_name(node) in _OPERATORS
    if any(name in renamed - {""} or name.endswith("Function") for name in map(last_name, node.bases)):
        return True
    # A base from another file: what tells a Function apart is a static backward.
    return bool(node.bases) and any(
        isinstance(item, ast.FunctionDef)
        and item.name in {"backward", "vjp"}
        and "staticmethod" in map(last_name, item.decorator_list)
        for item in node.body
    )


def names_to_complete(source: bytes) -> list[str]:
    """Top-level classes first, since a Function is one; then functions, which a spec may name."""
    module = module_of(source)
    classes = [node.name for node in module.tree.body if isinstance(node, ast.ClassDef) and node.bases]
    return classes + [name for name in module.functions if not name.startswith("_")]


def siblings_of(source: str, target: str, own: Sequence[str]) -> list[str]:
    """The functions of a module that are meant as the plain version of a Function with parameters `own`."""
    functions = module_of(source).functions.items()
    return [name for name, node in functions if is_sibling(name, every_parameter(node), target, own)]


def is_sibling(name: str, parameters: Sequence[str], target: str, own: Sequence[str]) -> bool:
    """Whether a marked function, `foo_ref`, has the name of a Function, or takes the same parameters.

    `parameters` are the function's, `own` those of the Function, which is called `target`.
    """
    words = [w for w in name.lower().split("_") if w]
    rest = [w for w in words if w not in MARKS]
    if len(rest) == len(words):
        return False
    takes_the_same = len(own) > 1 and list(parameters[: len(own)]) == list(own)
    return "".join(rest) in _stems(target) or takes_the_same


def _stems(class_name: str) -> set[str]:
    """`SoftmaxFunction` -> `softmax`."""
    plain = class_name.replace("_", "").lower()
    return {plain, re.sub(r"(autograd|custom)?(function|func|fn|op|impl|backward)$", "", plain)} - {""}
