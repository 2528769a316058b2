"""GV812: backward reads an attribute of ctx that nothing sets."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator

from gradverify.lint.alarm import Alarm, Source
from gradverify.lint.context import asked_for, attributes_read, attributes_set, lets_ctx_out
from gradverify.lint.functions import FunctionClass

OF_TORCH = frozenset(
    [
        "apply",
        "dirty_tensors",
        "mark_dirty",
        "mark_non_differentiable",
        "mark_shared_storage",
        "materialize_grads",
        "maybe_clear_saved_tensors",
        "metadata",
        "name",
        "needs_input_grad",
        "next_functions",
        "non_differentiable",
        "register_hook",
        "register_prehook",
        "requires_grad",
        "save_for_backward",
        "save_for_forward",
        "saved_for_forward",
        "saved_tensors",
        "saved_variables",
        "set_materialize_grads",
        "to_save",
    ]
)
"""What ctx has by itself."""


def check(function: FunctionClass, source: Source) -> Iterator[Alarm]:  # noqa: ARG001
    """Compare what backward reads with what forward, setup_context and jvp set."""
    backward, forward = function.backward, function.forward
    if backward is None or forward is None or not function.is_whole or not function.saving:
        return
    methods = [m for m in (*function.saving, function.methods.get("jvp"), backward) if m is not None]
    if any(lets_ctx_out(m) for m in methods) or any(m.is_wrapped for m in methods):
        return
    known = set(OF_TORCH).union(*map(attributes_set, methods), *map(asked_for, methods))
    told: set[str] = set()
    for node in attributes_read(backward):
        if node.attr in known or node.attr in told or node.attr.startswith("_"):
            continue
        told.add(node.attr)
        yield Alarm(
            "GV812",
            node,
            f"{backward.name} reads `{ast.unparse(node)}`, which {function.saving[0].name} never sets",
            _hint(function, node, known - OF_TORCH | {"saved_tensors", "needs_input_grad"}),
        )


def _hint(function: FunctionClass, node: ast.Attribute, known: set[str]) -> str:
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
