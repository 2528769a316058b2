"""What a Function keeps on ctx, and takes from it."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Sequence

from gradverify.lint.alarm import Alarm, plural
from gradverify.source import Function, Method, blocks, integer
from gradverify.source.memory import Aliases, steps
from gradverify.source.returned import differentiated, is_always_none

_KEPT_HINT = (
    "Use ctx.save_for_backward: an attribute skips the version check and the saved-tensor hooks, and keeps "
    "memory alive."
)

SCALARS = frozenset({"float", "int", "bool", "str"})
"""Annotations of what cannot be a tensor."""


def tensor_on_ctx(function: Function) -> Iterator[Alarm]:
    """GV802: an input or the output kept as an attribute of ctx."""
    forward = function.forward
    if forward is None or function.setup_context is not None or not forward.ctx:
        return
    tensors = differentiated(function) - _scalars(forward)
    output = _output(forward)
    aliases = Aliases({name: name for name in tensors}, through=frozenset())
    for step, known in steps(forward.node.body, aliases):
        for attribute, value in _kept(step, forward):
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
    return Alarm(attribute, f"{what} is kept as the attribute `{ast.unparse(attribute)}`", _KEPT_HINT)


def _kept(step: ast.AST, forward: Method) -> Iterator[tuple[ast.Attribute, ast.Name]]:
    """The pairs of `ctx.a = x` and `ctx.a, ctx.b = x, y`."""
    if not isinstance(step, ast.Assign):
        return
    for target in step.targets:
        several = isinstance(target, ast.Tuple) and isinstance(step.value, ast.Tuple)
        targets = target.elts if several and isinstance(target, ast.Tuple) else [target]
        values = step.value.elts if several and isinstance(step.value, ast.Tuple) else [step.value]
        for one, value in zip(targets, values, strict=False):
            if isinstance(one, ast.Attribute) and forward.is_ctx(one.value) and isinstance(value, ast.Name):
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
    tuples = any(
        b is None or isinstance(b, ast.Tuple | ast.List) or is_always_none(b, forward) for b in bound
    )
    return "" if tuples else name


_NO_TENSOR = (ast.List, ast.Tuple, ast.Dict, ast.Set, ast.ListComp, ast.JoinedStr)


def saving(function: Function) -> Iterator[Alarm]:
    """GV807: `save_for_backward` where it has no effect, twice, or with what is no tensor."""
    backward = function.backward
    if backward is not None:
        for call in backward.saved:
            yield Alarm(
                call,
                f"{backward.name} calls save_for_backward: nothing reads what it saves",
                "Save tensors in forward or setup_context.",
            )
    for method in function.saving:
        for call in method.saved:
            yield from _no_tensors(call)
        for block in blocks(method.node.body):
            yield from _repeated(block, method)


def _no_tensors(call: ast.Call) -> Iterator[Alarm]:
    for argument in call.args:
        literal = isinstance(argument, ast.Constant) and argument.value is not None
        shape = isinstance(argument, ast.Attribute) and argument.attr in {"shape", "dtype", "device"}
        if literal or shape or isinstance(argument, _NO_TENSOR):
            yield Alarm(
                argument,
                f"save_for_backward takes tensors and None, not `{_shown(argument)}`: it raises TypeError",
                "Keep what is no tensor as an attribute of ctx; give several tensors as several arguments.",
            )


def _shown(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _repeated(block: Sequence[ast.stmt], method: Method) -> Iterator[Alarm]:
    """Two calls in one list of statements: nothing lies between them that could skip the second."""
    found = {id(call) for call in method.saved}
    first = 0
    for statement in block:
        if isinstance(statement, ast.Expr) and id(statement.value) in found:
            if first:
                yield Alarm(
                    statement,
                    f"this save_for_backward replaces the one on line {first}: its tensors are lost",
                    "Save all tensors in one call.",
                )
            first = statement.lineno


OF_TORCH = frozenset(
    {"apply", "dirty_tensors", "mark_dirty", "mark_non_differentiable", "mark_shared_storage"}
    | {"materialize_grads", "maybe_clear_saved_tensors", "metadata", "name", "needs_input_grad"}
    | {"next_functions", "non_differentiable", "register_hook", "register_prehook", "requires_grad"}
    | {"save_for_backward", "save_for_forward", "saved_for_forward", "saved_tensors", "saved_variables"}
    | {"set_materialize_grads", "to_save"}
)
"""What ctx has by itself."""


def ctx_attributes(function: Function) -> Iterator[Alarm]:
    """GV812: backward reads an attribute of ctx that nothing sets."""
    backward, forward = function.backward, function.forward
    if backward is None or forward is None or not function.is_whole or not function.saving:
        return
    methods = [m for m in (*function.saving, function.methods.get("jvp"), backward) if m is not None]
    if any(m.lets_ctx_out() for m in methods) or any(m.is_wrapped for m in methods):
        return
    known = set(OF_TORCH).union(*(m.attributes_set | m.attributes_probed for m in methods))
    reported: set[str] = set()
    for node in backward.attributes_read:
        if node.attr in known or node.attr in reported or node.attr.startswith("_"):
            continue
        reported.add(node.attr)
        yield Alarm(
            node,
            f"{backward.name} reads `{ast.unparse(node)}`, which {function.saving[0].name} never sets",
            _hint(function, node, known - OF_TORCH | {"saved_tensors", "needs_input_grad"}),
        )


def _hint(function: Function, node: ast.Attribute, known: set[str]) -> str:
    of_class = {
        target.id
        for item in function.node.body
        if isinstance(item, ast.Assign)
        for target in item.targets
        if isinstance(target, ast.Name)
    }
    if node.attr in of_class:
        return f"ctx is no instance of the class: write {function.name}.{node.attr}."
    near = difflib.get_close_matches(node.attr, sorted(known), 1, 0.6)
    return f"Did you mean `{near[0]}`?" if near else f"Set it in {function.saving[0].name}."


def saved_count(function: Function) -> Iterator[Alarm]:
    """GV813: backward unpacks another number of saved tensors than were saved."""
    backward, forward = function.backward, function.forward
    if backward is None or forward is None or not function.is_whole or not function.saving:
        return
    if any(method.lets_ctx_out() or method.is_wrapped for method in function.saving):
        return
    saved = [call for method in function.saving for call in method.saved]
    if any(isinstance(argument, ast.Starred) for call in saved for argument in call.args):
        return
    counts = sorted({len(call.args) for call in saved}) or [0]
    for node, count, at_least in _taken(backward):
        if max(counts) < count if at_least else count not in counts:
            yield Alarm(
                node,
                f"{backward.name} takes {plural(count, 'saved tensor')}, but {_said(counts, function)}",
                "Unpack as many as were saved, in the same order.",
            )


def _said(counts: list[int], function: Function) -> str:
    if counts == [0]:
        return f"{function.saving[0].name} saves none"
    return f"{' or '.join(map(str, counts))} {'was' if counts == [1] else 'were'} saved"


def _taken(backward: Method) -> Iterator[tuple[ast.AST, int, bool]]:
    """(node, how many tensors it takes, whether more may have been saved)."""
    reads = {id(n) for n in backward.attributes_read if n.attr in {"saved_tensors", "saved_variables"}}
    for node in backward.nodes:
        if isinstance(node, ast.Assign) and id(node.value) in reads:
            for target in node.targets:
                if isinstance(target, ast.Tuple | ast.List):
                    starred = any(isinstance(element, ast.Starred) for element in target.elts)
                    yield target, len(target.elts) - starred, starred
        elif isinstance(node, ast.Subscript) and id(node.value) in reads:
            index = integer(node.slice)
            if index is not None and index >= 0:
                yield node, index + 1, True
