"""GV814: backward takes another number of grad_outputs than forward has outputs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradverify.lint.alarm import Alarm, Source
from gradverify.lint.functions import FunctionClass
from gradverify.lint.returned import returned
from gradverify.lint.words import plural


def check(function: FunctionClass, source: Source) -> Iterator[Alarm]:  # noqa: ARG001
    """Compare backward's parameters with the tuples that forward returns."""
    forward, backward = function.forward, function.backward
    if forward is None or backward is None or backward.variadic or not function.is_whole:
        return
    if forward.is_wrapped or backward.is_wrapped:
        return
    paths = returned(forward)
    counts = {len(path.values) if path.values is not None and _is_tuple(path.values) else 0 for path in paths}
    if len(counts) != 1 or 0 in counts:
        return
    (outputs,) = counts
    most = len(backward.parameters) - 1
    if not most - backward.defaults <= outputs <= most:
        yield Alarm(
            "GV814",
            backward.node,
            f"{backward.name} takes {plural(most, 'grad_output')}, forward returns "
            f"{plural(outputs, 'output')} (line {paths[0].node.lineno})",
            "Give it one parameter after ctx for each output of forward.",
        )


def _is_tuple(values: tuple[ast.expr, ...]) -> bool:
    """Whether several values are returned: what a single one holds cannot be told."""
    return len(values) > 1
