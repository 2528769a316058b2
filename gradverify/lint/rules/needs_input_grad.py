"""GV805: an index of `ctx.needs_input_grad` that is out of step with forward's parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradverify.lint.alarm import Alarm, Source
from gradverify.lint.context import attributes_read
from gradverify.lint.functions import FunctionClass, Method
from gradverify.lint.returned import is_none, returned
from gradverify.lint.walking import bindings, own_nodes_of
from gradverify.lint.words import plural
from gradverify.model import Severity


def check(function: FunctionClass, source: Source) -> Iterator[Alarm]:  # noqa: ARG001
    """Check indices against the number of inputs, guards against the position of what they guard."""
    forward, backward = function.forward, function.backward
    if forward is None or backward is None or forward.variadic or not function.is_whole:
        return
    inputs = function.inputs
    yield from _out_of_range(backward, inputs)
    yield from _other_position(backward, inputs)


def _out_of_range(backward: Method, inputs: tuple[str, ...]) -> Iterator[Alarm]:
    asked = {id(node) for node in attributes_read(backward) if node.attr == "needs_input_grad"}
    takes = f"forward takes {plural(len(inputs), 'input')} ({', '.join(inputs)})"
    for node in backward.nodes:
        if isinstance(node, ast.Subscript) and id(node.value) in asked:
            index = _constant(node.slice)
            if index is not None and index >= len(inputs):
                yield Alarm(
                    "GV805",
                    node,
                    f"ctx.needs_input_grad[{index}] is out of range: {takes}",
                    "Its entries are forward's parameters without ctx, counted from 0.",
                )
        elif isinstance(node, ast.Assign) and id(node.value) in asked:
            for target in node.targets:
                if isinstance(target, ast.Tuple) and _miscounts(target, len(inputs)):
                    yield Alarm(
                        "GV805",
                        node,
                        f"ctx.needs_input_grad is unpacked into {plural(len(target.elts), 'name')}, {takes}",
                        "Its entries are forward's parameters without ctx, one each.",
                    )


def _miscounts(target: ast.Tuple, count: int) -> bool:
    return len(target.elts) > count and not any(isinstance(e, ast.Starred) for e in target.elts)


def _other_position(backward: Method, inputs: tuple[str, ...]) -> Iterator[Alarm]:
    """A name that is computed only under the guard of one input, and returned as another's gradient."""
    positions = _positions(backward)
    for node in backward.nodes:
        if not isinstance(node, ast.If) or node.orelse:
            continue
        index = _guarded(node.test, backward.ctx)
        if index is None or index >= len(inputs):
            continue
        computed = [n for n in sorted(_bound(node.body)) if n in positions]
        if not computed or any(index in positions[name] for name in computed):
            continue
        for name in computed:
            wrong = positions[name]
            if len(wrong) == 1 and max(wrong) < len(inputs) and _only_there(backward, name, node):
                (place,) = wrong
                yield Alarm(
                    "GV805",
                    node.test,
                    f"`{name}` is computed where input {index} (`{inputs[index]}`) requires grad, and "
                    f"returned for input {place} (`{inputs[place]}`)",
                    f"Did you mean ctx.needs_input_grad[{place}]?",
                    Severity.WARNING,
                )


def _positions(backward: Method) -> dict[str, set[int]]:
    """Where each local name is returned; empty where some path cannot be read."""
    paths = returned(backward)
    if any(path.values is None for path in paths):
        return {}
    found: dict[str, set[int]] = {}
    for path in paths:
        for place, value in enumerate(path.values or ()):
            for inner in ast.walk(value):
                if isinstance(inner, ast.Name):
                    found.setdefault(inner.id, set()).add(place)
    return found


def _guarded(test: ast.expr, ctx: str) -> int | None:
    match test:
        case ast.Subscript(
            value=ast.Attribute(value=ast.Name(id=name), attr="needs_input_grad"), slice=index
        ):
            return _constant(index) if name == ctx else None
        case _:
            return None


def _bound(body: list[ast.stmt]) -> set[str]:
    return {
        node.id
        for node in own_nodes_of(body)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _only_there(backward: Method, name: str, guard: ast.If) -> bool:
    """Whether a name has no other value than None outside the guard, and is not read by other gradients."""
    inside = bindings(guard.body).get(name, [])
    everywhere = backward.bindings.get(name, [])
    outside = [value for value in everywhere if all(value is not one for one in inside)]
    read_again = sum(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        for node in backward.nodes
    )
    returns = sum(
        isinstance(n, ast.Name) and n.id == name
        for node in backward.nodes
        if isinstance(node, ast.Return)
        for n in ast.walk(node)
    )
    in_guard = sum(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        for node in own_nodes_of(guard.body)
    )
    nothing_else = all(value is not None and is_none(value, backward) for value in outside)
    return name not in backward.parameters and nothing_else and read_again == returns + in_guard


def _constant(index: ast.expr) -> int | None:
    value = index.value if isinstance(index, ast.Constant) else None
    return value if isinstance(value, int) else None
