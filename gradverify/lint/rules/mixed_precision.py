"""GV808: one of `custom_fwd` and `custom_bwd` without the other."""

from __future__ import annotations

from collections.abc import Iterator

from gradverify.lint.alarm import Alarm, Source
from gradverify.lint.context import lets_ctx_out
from gradverify.lint.functions import FunctionClass, Method


def check(function: FunctionClass, source: Source) -> Iterator[Alarm]:  # noqa: ARG001
    """Compare the decorators of forward and backward."""
    forward, backward = function.forward, function.backward
    if forward is None or backward is None or forward.is_wrapped or backward.is_wrapped:
        return
    if any(lets_ctx_out(method) for method in (forward, backward)):
        return  # what ctx is handed to may be decorated
    has_forward, has_backward = _has(forward, "custom_fwd"), _has(backward, "custom_bwd")
    if has_forward and not has_backward:
        yield Alarm(
            "GV808",
            backward.node,
            f"forward has @custom_fwd, {backward.name} no @custom_bwd: it runs in whatever autocast state "
            "the caller of backward has",
            "Decorate it with torch.amp.custom_bwd, with the same device_type.",
        )
    if has_backward and not has_forward:
        yield Alarm(
            "GV808",
            forward.node,
            f"{backward.name} has @custom_bwd, forward no @custom_fwd: the autocast state it asks for was "
            "never kept",
            "Decorate forward with torch.amp.custom_fwd, with the same device_type.",
        )


def _has(method: Method, name: str) -> bool:
    return any(name in decorator for decorator in method.decorators)
