"""The source of a function with that of the functions beside it that it calls by name."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any

from gradverify.verifier.collect.inference.evidence import parsed


def bodies(function: Any) -> Iterator[tuple[ast.FunctionDef, Mapping[str, Any]]]:  # noqa: ANN401 - the user's
    """The definition of a function and of those that it calls by name, with the names known there."""
    definition = parsed(function)
    if definition is None:
        return
    known = getattr(function, "__globals__", {})
    yield definition, known
    called = {
        n.func.id for n in ast.walk(definition) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    }
    for name in sorted(called):
        helper = known.get(name)
        if isinstance(helper, FunctionType) and helper is not function:
            inner = parsed(helper)
            if inner is not None:
                yield inner, helper.__globals__
