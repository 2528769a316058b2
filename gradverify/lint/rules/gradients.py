"""How many gradients backward takes and returns, and where."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from gradverify.lint.alarm import Alarm, plural
from gradverify.model import Severity
from gradverify.source import (
    Function,
    Method,
    integer,
    last_name,
    names_bound,
    names_read,
    own_nodes_of,
    returned,
)
from gradverify.source.returned import gives_gradient, is_always_none
from gradverify.source.tree import bindings


def gradient_count(function: Function) -> Iterator[Alarm]:
    """GV803: a path of backward that returns more or fewer gradients than forward has parameters."""
    forward, backward = function.forward, function.backward
    if forward is None or backward is None or forward.variadic or not function.is_whole:
        return
    if not gives_gradient(backward):
        return  # nobody calls it: an output that is not differentiable
    inputs = function.inputs
    fewest = len(inputs) - forward.defaults
    for path in returned(backward):
        if path.values is None:
            continue
        count = len(path.values)
        surplus = path.values[len(inputs) :]
        if count < fewest or any(not is_always_none(value, backward) for value in surplus):
            takes = plural(len(inputs), "input")
            gives = plural(count, "gradient")
            yield Alarm(
                path.node,
                f"{backward.name} returns {gives} here, forward takes {takes} ({', '.join(inputs)})",
                "Return one gradient for each input of forward in order, None for those that have none.",
            )


def needs_input_grad(function: Function) -> Iterator[Alarm]:
    """GV805: an index of `ctx.needs_input_grad` that is out of step with forward's parameters."""
    forward, backward = function.forward, function.backward
    if forward is None or backward is None or forward.variadic or not function.is_whole:
        return
    inputs = function.inputs
    yield from _out_of_range(backward, inputs)
    yield from _other_position(backward, inputs)


def _out_of_range(backward: Method, inputs: tuple[str, ...]) -> Iterator[Alarm]:
    asked = _asked(backward)
    takes = f"forward takes {plural(len(inputs), 'input')} ({', '.join(inputs)})"
    for node in backward.nodes:
        if isinstance(node, ast.Subscript) and id(node.value) in asked:
            index = integer(node.slice)
            if index is not None and index >= len(inputs):
                yield Alarm(
                    node,
                    f"ctx.needs_input_grad[{index}] is out of range: {takes}",
                    "Its entries are forward's parameters without ctx, counted from 0.",
                )
        elif isinstance(node, ast.Assign) and id(node.value) in asked:
            for target in node.targets:
                if isinstance(target, ast.Tuple) and _miscounts(target, len(inputs)):
                    yield Alarm(
                        node,
                        f"ctx.needs_input_grad is unpacked into {plural(len(target.elts), 'name')}, {takes}",
                        "Its entries are forward's parameters without ctx, one each.",
                    )


def _asked(backward: Method) -> set[int]:
    """The ids of the nodes `ctx.needs_input_grad`."""
    return {id(node) for node in backward.attributes_read if node.attr == "needs_input_grad"}


def _miscounts(target: ast.Tuple, count: int) -> bool:
    return len(target.elts) > count and not any(isinstance(e, ast.Starred) for e in target.elts)


def _other_position(backward: Method, inputs: tuple[str, ...]) -> Iterator[Alarm]:
    """A name that is computed only under the guard of one input, and returned as another's gradient."""
    positions, asked = _positions(backward), _asked(backward)
    for node in backward.nodes:
        if not isinstance(node, ast.If) or node.orelse:
            continue
        guards = isinstance(node.test, ast.Subscript) and id(node.test.value) in asked
        index = integer(node.test.slice) if guards and isinstance(node.test, ast.Subscript) else None
        if index is None or not 0 <= index < len(inputs):
            continue
        computed = [n for n in sorted(names_bound(node.body)) if n in positions]
        if not computed or any(index in positions[name] for name in computed):
            continue
        for name in computed:
            wrong = positions[name]
            if len(wrong) == 1 and max(wrong) < len(inputs) and _only_there(backward, name, node):
                (place,) = wrong
                yield Alarm(
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


def _only_there(backward: Method, name: str, guard: ast.If) -> bool:
    """Whether a name has no other value than None outside the guard, and is not read by other gradients."""
    inside = bindings(guard.body).get(name, [])
    everywhere = backward.bindings.get(name, [])
    outside = [value for value in everywhere if all(value is not one for one in inside)]
    returns = (n for node in backward.nodes if isinstance(node, ast.Return) for n in ast.walk(node))
    elsewhere = _reads(backward.nodes, name) - _reads(returns, name) - _reads(own_nodes_of(guard.body), name)
    nothing_else = all(value is not None and is_always_none(value, backward) for value in outside)
    return name not in backward.parameters and nothing_else and not elsewhere


def _reads(nodes: Iterable[ast.AST], name: str) -> int:
    """How often a name is read."""
    return sum(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load) for n in nodes)


def grad_output_count(function: Function) -> Iterator[Alarm]:
    """GV814: backward takes another number of grad_outputs than forward has outputs."""
    forward, backward = function.forward, function.backward
    if forward is None or backward is None or backward.variadic or not function.is_whole:
        return
    if forward.is_wrapped or backward.is_wrapped:
        return
    paths = returned(forward)
    counts = {len(path.values or ()) for path in paths}
    outputs = counts.pop() if len(counts) == 1 else 0
    if outputs <= 1:  # what a single one holds cannot be read off
        return
    most = len(backward.parameters) - 1
    if not most - backward.defaults <= outputs <= most:
        yield Alarm(
            backward.node,
            f"{backward.name} takes {plural(most, 'grad_output')}, forward returns "
            f"{plural(outputs, 'output')} (line {paths[0].node.lineno})",
            "Give it one parameter after ctx for each output of forward.",
        )


def grad_output_unused(function: Function) -> Iterator[Alarm]:
    """GV815: backward never uses its grad_output."""
    backward = function.backward
    if backward is None or backward.is_wrapped or len(backward.parameters) < 2:
        return
    given = {*backward.parameters[1:], backward.variadic}
    names = names_read(backward.node)
    if given & names or names & {"locals", "super"} or not _gives_gradient(backward):
        return
    named = ", ".join(f"`{name}`" for name in backward.parameters[1:])
    yield Alarm(
        backward.node,
        f"{backward.name} never uses {named}: its gradient is right only where the output is the loss itself",
        "Multiply by grad_output, also where forward has computed the gradient already.",
    )


def _gives_gradient(backward: Method) -> bool:
    """Whether something other than None and zeros is returned, as far as one can see."""
    zeros = any("zero" in last_name(n) for n in ast.walk(backward.node))
    return not zeros and gives_gradient(backward)
