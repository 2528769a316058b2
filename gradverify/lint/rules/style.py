"""How a Function is declared: setup_context, `@staticmethod`, mixed precision."""

from __future__ import annotations

from collections.abc import Iterator

from gradverify.lint.alarm import Alarm
from gradverify.source import Function, Method


def no_setup_context(function: Function) -> Iterator[Alarm]:
    """GV806: a Function in the combined style, which torch.func refuses."""
    forward = function.forward
    if forward is None or function.backward is None or not function.is_whole or not function.defines(forward):
        return
    if function.setup_context is None and forward.is_static:
        yield Alarm(
            function.node,
            "without setup_context, torch.func.grad, vmap and jvp refuse it",
            "Split forward(ctx, ...) into forward(...) and setup_context(ctx, inputs, output).",
        )


def mixed_precision(function: Function) -> Iterator[Alarm]:
    """GV808: one of `custom_fwd` and `custom_bwd` without the other."""
    forward, backward = function.forward, function.backward
    if forward is None or backward is None or forward.is_wrapped or backward.is_wrapped:
        return
    if any(method.lets_ctx_out() for method in (forward, backward)):
        return  # what ctx is handed to may be decorated
    has_forward, has_backward = _has(forward, "custom_fwd"), _has(backward, "custom_bwd")
    if has_forward and not has_backward:
        yield Alarm(
            backward.node,
            f"forward has @custom_fwd, {backward.name} no @custom_bwd: it runs in whatever autocast state "
            "the caller of backward has",
            "Decorate it with torch.amp.custom_bwd, with the same device_type.",
        )
    if has_backward and not has_forward:
        yield Alarm(
            forward.node,
            f"{backward.name} has @custom_bwd, forward no @custom_fwd: the autocast state that it needs "
            "was never saved",
            "Decorate forward with torch.amp.custom_fwd, with the same device_type.",
        )


def _has(method: Method, name: str) -> bool:
    return any(name in decorator for decorator in method.decorators)


def old_style(function: Function) -> Iterator[Alarm]:
    """GV810: a method that torch calls lacks `@staticmethod`."""
    for name in ("forward", "backward", "vjp", "setup_context"):
        method = function.methods.get(name)
        wrapped = method is not None and (method.is_wrapped or "classmethod" in method.decorators)
        if method is not None and function.defines(method) and not method.is_static and not wrapped:
            yield Alarm(
                method.node,
                f"{name} is not a @staticmethod (the old style)",
                "Put @staticmethod above it and call its first parameter ctx.",
            )
            return
