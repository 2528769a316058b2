"""GV804: backward modifies its grad_output in place."""

from __future__ import annotations

from collections.abc import Iterator

from gradverify.lint.alarm import Alarm, Source
from gradverify.lint.aliases import SAME_IF_CONTIGUOUS, VIEWS, Aliases, steps, writes
from gradverify.lint.functions import FunctionClass


def check(function: FunctionClass, source: Source) -> Iterator[Alarm]:
    """Follow grad_output through views and `.contiguous()` to what writes into it."""
    backward = function.backward
    if backward is None:
        return
    names = [*backward.parameters[1:], *filter(None, [backward.variadic])]
    aliases = Aliases(
        {name: name for name in names},
        tuples=frozenset({backward.variadic} - {""}),
        through=VIEWS | SAME_IF_CONTIGUOUS,
    )
    for step, known in steps(backward.node.body, aliases):
        for node, parameter in writes(step, known, source.imported):
            yield Alarm(
                "GV804",
                node,
                f"{backward.name} modifies `{parameter}` in place, which other nodes of the graph may share",
                f"Work on a copy: `{parameter} * ...` instead of `mul_`, or `{parameter}.clone()` first.",
            )
