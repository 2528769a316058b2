"""GV806: a Function in the combined style, which torch.func refuses."""

from __future__ import annotations

from collections.abc import Iterator

from gradverify.lint.alarm import Alarm, Source
from gradverify.lint.functions import FunctionClass


def check(function: FunctionClass, source: Source) -> Iterator[Alarm]:  # noqa: ARG001
    """Report a forward that takes ctx itself."""
    forward = function.forward
    if forward is None or function.backward is None or not function.is_whole or not function.defines(forward):
        return
    if function.setup_context is None and forward.is_static:
        yield Alarm(
            "GV806",
            function.node,
            "without setup_context, torch.func.grad, vmap and jvp refuse it",
            "Split forward(ctx, ...) into forward(...) and setup_context(ctx, inputs, output).",
        )
