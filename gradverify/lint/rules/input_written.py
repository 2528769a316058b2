"""GV811: forward modifies an input in place and does not tell autograd."""

from __future__ import annotations

from collections.abc import Iterator

from gradverify.lint.alarm import Alarm, Source
from gradverify.lint.aliases import VIEWS, Aliases, steps, writes
from gradverify.lint.context import calls, lets_ctx_out
from gradverify.lint.functions import FunctionClass
from gradverify.lint.returned import differentiated


def check(function: FunctionClass, source: Source) -> Iterator[Alarm]:
    """Follow forward's differentiated inputs, and their views, to what writes into them."""
    forward = function.forward
    if forward is None or any(calls(m, "mark_dirty") or lets_ctx_out(m) for m in function.saving):
        return
    aliases = Aliases({name: name for name in differentiated(function)}, through=VIEWS)
    told: set[str] = set()
    for step, known in steps(forward.node.body, aliases):
        for node, parameter in writes(step, known, source.imported):
            if parameter not in told:
                told.add(parameter)
                yield Alarm(
                    "GV811",
                    node,
                    f"forward modifies its input `{parameter}` in place without ctx.mark_dirty({parameter})",
                    "Work on a copy, or mark it dirty and return it.",
                )
