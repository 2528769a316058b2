"""The user's own functions that forward hands its parameters to: the launcher of a kernel, `_forward`."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from types import FunctionType, ModuleType
from typing import Any

from gradverify.verifier import guard
from gradverify.verifier.guard import Raised

_BEHIND = ("py_func", "fn", "func", "_torchdynamo_orig_callable")
"""Attributes under which compilers and decorators keep what they were given."""


def function_called(called: ast.expr, given: Mapping[str, Any], package: str) -> FunctionType | None:
    """The plain function that an expression calls, if it is of this package; `given` are the global names."""
    found: Any
    match called:
        case ast.Name(id=name):
            found = given.get(name)
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            holder = given.get(owner)
            found = getattr(holder, name, None) if isinstance(holder, ModuleType | type) else None
        case ast.Subscript(value=value):  # a kernel launched over a grid
            return function_called(value, given, package)
        case _:
            return None
    behind = guard.call(_behind, found)  # a proxy that is not set up raises whatever it is asked for
    plain = None if isinstance(behind, Raised) else behind.value
    return plain if plain is not None and plain.__module__.partition(".")[0] == package else None


def _behind(found: Any) -> FunctionType | None:  # noqa: ANN401
    """The plain function behind something that decorators made of it. Raises whatever that raises."""
    found = inspect.unwrap(found) if callable(found) else found
    for attribute in _BEHIND:
        if isinstance(found, FunctionType):
            break
        found = getattr(found, attribute, None)
    return found if isinstance(found, FunctionType) else None
