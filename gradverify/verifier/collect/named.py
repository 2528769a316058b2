"""Calling with values by position alone: parameters that a callable takes only by name come last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradverify.model import Parameter


def with_keywords(
    function: Callable[..., Any], parameters: Sequence[Parameter], given: Sequence[str]
) -> Callable[..., Any]:
    """The function as one of positional values, in the order of its parameters.

    `given` names what is passed; it tells where the keywords begin behind a `*args`.
    """
    by_name = [p.name for p in parameters if p.keyword_only]
    if not by_name:
        return function
    first: int | None = len(parameters) - len(by_name)
    if any(p.variadic for p in parameters):
        by_name = [name for name in by_name if name in given]
        first = -len(by_name) or None

    def call(*values: Any) -> Any:  # noqa: ANN401 - user code's arguments and result
        named = values[first:] if first is not None else ()
        return function(*values[:first], **dict(zip(by_name, named, strict=False)))

    return call


def by_name_last(names: Sequence[str], parameters: Sequence[Parameter]) -> list[str]:
    """Names of inputs, those that are passed by name alone behind the others."""
    order = [p.name for p in parameters if p.keyword_only]
    return sorted(names, key=lambda name: order.index(name) + 1 if name in order else 0)
