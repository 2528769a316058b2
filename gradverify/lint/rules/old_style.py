"""GV810: a method that torch calls lacks `@staticmethod`."""

from __future__ import annotations

from collections.abc import Iterator

from gradverify.lint.alarm import Alarm, Source
from gradverify.lint.functions import FunctionClass


def check(function: FunctionClass, source: Source) -> Iterator[Alarm]:  # noqa: ARG001
    """Report the first such method of the class."""
    for name in ("forward", "backward", "vjp", "setup_context"):
        method = function.methods.get(name)
        wrapped = method is not None and (method.is_wrapped or "classmethod" in method.decorators)
        if method is not None and function.defines(method) and not method.is_static and not wrapped:
            yield Alarm(
                "GV810",
                method.node,
                f"{name} is not a @staticmethod (the old style)",
                "Put @staticmethod above it and call its first parameter ctx.",
            )
            return
