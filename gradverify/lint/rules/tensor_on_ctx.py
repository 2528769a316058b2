"""GV802: an input or the output kept as an attribute of ctx."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradverify.lint.alarm import Alarm, Source
from gradverify.lint.aliases import Aliases, steps
from gradverify.lint.functions import FunctionClass, Method
from gradverify.lint.returned import differentiated, is_none

_HINT = (
    "Use ctx.save_for_backward: an attribute skips the version check and the saved-tensor hooks, and keeps "
    "memory alive."
)

SCALARS = frozenset({"float", "int", "bool", "str"})
"""Annotations of what cannot be a tensor."""


def check(function: FunctionClass, source: Source) -> Iterator[Alarm]:  # noqa: ARG001
    """Follow forward's tensors into `ctx.name = tensor`."""
    forward = function.forward
    if forward is None or function.setup_context is not None or not forward.ctx:
        return
    tensors = differentiated(function) - _scalars(forward)
    output = _output(forward)
    aliases = Aliases({name: name for name in tensors}, through=frozenset())
    for step, known in steps(forward.node.body, aliases):
        for attribute, value in _kept(step, forward.ctx):
            taken = known.names.get(value.id, "")
            if taken == value.id and not _is_taken_away(forward, attribute):
                yield _alarm(attribute, f"the input `{taken}`")
            elif value.id == output and value.id not in forward.parameters:
                yield _alarm(attribute, f"the output `{output}`")


def _scalars(forward: Method) -> frozenset[str]:
    """Parameters that their annotation calls plain numbers, whatever backward returns in their place."""
    arguments = forward.node.args
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return frozenset(a.arg for a in every if a.annotation and ast.unparse(a.annotation) in SCALARS)


def _alarm(attribute: ast.Attribute, what: str) -> Alarm:
    return Alarm("GV802", attribute, f"{what} is kept as the attribute `{ast.unparse(attribute)}`", _HINT)


def _kept(step: ast.AST, ctx: str) -> Iterator[tuple[ast.Attribute, ast.Name]]:
    """The pairs of `ctx.a = x` and `ctx.a, ctx.b = x, y`."""
    if not isinstance(step, ast.Assign):
        return
    for target in step.targets:
        several = isinstance(target, ast.Tuple) and isinstance(step.value, ast.Tuple)
        targets = target.elts if several and isinstance(target, ast.Tuple) else [target]
        values = step.value.elts if several and isinstance(step.value, ast.Tuple) else [step.value]
        for one, value in zip(targets, values, strict=False):
            is_ctx = (
                isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id == ctx
            )
            if is_ctx and isinstance(one, ast.Attribute) and isinstance(value, ast.Name):
                yield one, value


def _is_taken_away(forward: Method, attribute: ast.Attribute) -> bool:
    """Whether forward itself deletes or replaces the attribute again."""
    return any(
        isinstance(node, ast.Attribute)
        and node is not attribute
        and node.attr == attribute.attr
        and not isinstance(node.ctx, ast.Load)
        for node in forward.nodes
    )


def _output(forward: Method) -> str:
    """The name of the one tensor that forward returns, empty where it is no such name."""
    results = [n.value for n in forward.nodes if isinstance(n, ast.Return)]
    names = {r.id if isinstance(r, ast.Name) else "" for r in results}
    name = names.pop() if len(names) == 1 else ""
    bound = forward.bindings.get(name, []) if name else []
    tuples = any(b is None or isinstance(b, ast.Tuple | ast.List) or is_none(b, forward) for b in bound)
    return "" if tuples else name
