"""The size expressions of an entry as they stand in the file: which sizes are used, and where.

They are taken from the raw entries, so that a mistake in one place of an input does not hide those
in another, and in their order, by which undeclared sizes get their values.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping

from gradverify.spec.conditions import parse_condition
from gradverify.spec.evaluated import size_expression
from gradverify.spec.sizes import Expression, ExpressionError, parse_expression
from gradverify.spec.wording import Path

_SHAPES = {"shape", "range", "tuple"}
_NESTED = {"list", "concat", "of"}


def expressions(inputs: Mapping[str, object]) -> Iterator[tuple[Path, Expression]]:
    """Yield the size expressions of all inputs with their paths, in the order of the file."""
    for name, raw in inputs.items():
        yield from _of_entry(raw, (name,))


def used_names(inputs: Mapping[str, object]) -> list[str]:
    """Return the sizes that inputs use, each once, in order of appearance."""
    return list(dict.fromkeys(name for _, expression in expressions(inputs) for name in expression.names))


def init_names(raw: Mapping[str, object], sizes: Collection[str]) -> set[str]:
    """Return which of the sizes an `init:` uses: the function's own, and those of its objects."""
    inputs = raw.get("inputs")
    entries = inputs.values() if isinstance(inputs, dict) else ()
    objects = [entry.get("init") for entry in entries if isinstance(entry, dict)]
    return {name for text in _texts([raw.get("init"), objects]) for name in _names(text, sizes)}


def where_names(raw: Mapping[str, object]) -> Iterator[tuple[Path, str]]:
    """Yield the sizes that `where` names, with the place of their condition."""
    conditions = raw.get("where")
    for index, text in enumerate(conditions if isinstance(conditions, list) else []):
        with contextlib.suppress(ExpressionError):
            if isinstance(text, str):
                for name in parse_condition(text).names:
                    yield ("where", index), name


def _of_entry(raw: object, path: Path) -> Iterator[tuple[Path, Expression]]:
    if isinstance(raw, list):
        yield from _of_values(raw, path)
    elif isinstance(raw, dict):
        for key, value in raw.items():
            here = (*path, key)
            if key in _SHAPES:
                yield from _of_values(value, here)
            elif key == "size":
                yield from _of_text(value, here)
            elif key == "constant_at" and isinstance(value, dict):
                for dimension, indices in value.items():
                    yield from _of_values(indices, (*here, dimension))
            elif key in _NESTED:
                yield from _of_parts(value, here)


def _of_parts(value: object, path: Path) -> Iterator[tuple[Path, Expression]]:
    if isinstance(value, list) and path[-1] != "of":
        for index, part in enumerate(value):
            yield from _of_entry(part, (*path, index))
    else:
        yield from _of_entry(value, path)


def _of_values(value: object, path: Path) -> Iterator[tuple[Path, Expression]]:
    for index, item in enumerate(value if isinstance(value, list) else []):
        here = (*path, index)
        yield from _of_values(item, here) if isinstance(item, list) else _of_text(item, here)


def _of_text(text: object, path: Path) -> Iterator[tuple[Path, Expression]]:
    with contextlib.suppress(ExpressionError):
        if isinstance(text, str):
            yield path, parse_expression(text)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def _names(text: str, sizes: Collection[str]) -> tuple[str, ...]:
    expression = size_expression(text, sizes)
    return expression.names if expression else ()
