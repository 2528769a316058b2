"""How a method uses its ctx: attributes set and read, calls, and whether ctx leaves the method."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradverify.lint.functions import Method

_ASKING = frozenset({"hasattr", "getattr"})
"""Builtins that read one attribute of ctx and keep nothing."""


def attributes(method: Method) -> Iterator[ast.Attribute]:
    """Every `ctx.name`, in source order; functions inside the method see the same ctx."""
    found = (
        node
        for node in ast.walk(method.node)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == method.ctx
    )
    return iter(sorted(found, key=lambda node: (node.lineno, node.col_offset)))


def attributes_set(method: Method) -> set[str]:
    """Names of the attributes that the method sets on some path."""
    return {node.attr for node in attributes(method) if isinstance(node.ctx, ast.Store)}


def attributes_read(method: Method) -> list[ast.Attribute]:
    """Attributes that are read, in source order."""
    return [node for node in attributes(method) if isinstance(node.ctx, ast.Load)]


def calls(method: Method, name: str) -> list[ast.Call]:
    """Calls of `ctx.name(...)`, in source order."""
    found = (
        node
        for node in ast.walk(method.node)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == name
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == method.ctx
    )
    return sorted(found, key=lambda node: (node.lineno, node.col_offset))


def lets_ctx_out(method: Method) -> bool:
    """Whether other code gets hold of ctx and may set what it likes: a call, another name, `__dict__`."""
    plain = {id(node.value) for node in attributes(method)}
    for node in ast.walk(method.node):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _ASKING:
            plain |= {id(argument) for argument in node.args[:1]}
    used = (
        node
        for node in ast.walk(method.node)
        if isinstance(node, ast.Name) and node.id == method.ctx and id(node) not in plain
    )
    return any(True for _ in used) or any(a.attr.startswith("__") for a in attributes(method))


def asked_for(method: Method) -> set[str]:
    """Attributes whose absence the method reckons with: `hasattr(ctx, "bias")`."""
    return {
        node.args[1].value
        for node in ast.walk(method.node)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in _ASKING
        and len(node.args) > 1
        and isinstance(node.args[1], ast.Constant)
        and isinstance(node.args[1].value, str)
    }
