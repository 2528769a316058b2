"""GV813: backward unpacks another number of saved tensors than were saved."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradverify.lint.alarm import Alarm, Source
from gradverify.lint.context import attributes_read, calls, lets_ctx_out
from gradverify.lint.functions import FunctionClass, Method
from gradverify.lint.words import plural


def check(function: FunctionClass, source: Source) -> Iterator[Alarm]:  # noqa: ARG001
    """Hold each unpacking, and each index, against the calls of save_for_backward."""
    backward, forward = function.backward, function.forward
    if backward is None or forward is None or not function.is_whole or not function.saving:
        return
    if any(lets_ctx_out(method) or method.is_wrapped for method in function.saving):
        return
    saved = [call for method in function.saving for call in calls(method, "save_for_backward")]
    if any(isinstance(argument, ast.Starred) for call in saved for argument in call.args):
        return
    counts = sorted({len(call.args) for call in saved}) or [0]
    for node, count, at_least in _taken(backward):
        if max(counts) < count if at_least else count not in counts:
            yield Alarm(
                "GV813",
                node,
                f"{backward.name} takes {plural(count, 'saved tensor')}, but {_said(counts, function)}",
                "Unpack as many as were saved, in the same order.",
            )


def _said(counts: list[int], function: FunctionClass) -> str:
    if counts == [0]:
        return f"{function.saving[0].name} saves none"
    return f"{' or '.join(map(str, counts))} {'was' if counts == [1] else 'were'} saved"


def _taken(backward: Method) -> Iterator[tuple[ast.AST, int, bool]]:
    """(node, how many tensors it takes, whether more may have been saved)."""
    reads = {id(n) for n in attributes_read(backward) if n.attr in {"saved_tensors", "saved_variables"}}
    for node in backward.nodes:
        if isinstance(node, ast.Assign) and id(node.value) in reads:
            for target in node.targets:
                if isinstance(target, ast.Tuple | ast.List):
                    starred = any(isinstance(element, ast.Starred) for element in target.elts)
                    yield target, len(target.elts) - starred, starred
        elif isinstance(node, ast.Subscript) and id(node.value) in reads:
            index = node.slice
            if isinstance(index, ast.Constant) and isinstance(index.value, int):
                yield node, index.value + 1, True
