"""The user's own functions that forward hands its parameters to: the launcher of a kernel, `_forward`."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

from gradverify.source import definition, parameters_of
from gradverify.verifier import guard
from gradverify.verifier.guard import Raised
from gradverify.verifier.infer.facts import Facts
from gradverify.verifier.infer.uses import Reader, name_behind

DEEPEST = 3
"""Functions within functions that are read."""

MOST_ENTERED = 30
"""Functions that are read for one target."""

_BEHIND = ("py_func", "fn", "func", "_torchdynamo_orig_callable")
"""Attributes under which compilers and decorators keep what they were given."""


@dataclass
class Helpers:
    """Those that were entered."""

    facts: Mapping[str, Facts]
    package: str
    """Only functions of this package are the user's own."""
    entered: list[ast.FunctionDef] = field(default_factory=list)
    _seen: set[tuple[object, ...]] = field(default_factory=set)

    def entering(
        self, given: Mapping[str, Any], depth: int = 0
    ) -> Callable[[ast.Call, Mapping[str, str]], None] | None:
        """What a reader of a function with these global names tells of its calls."""

        def enter(call: ast.Call, known: Mapping[str, str]) -> None:
            function = self._function(call.func, given)
            if function is not None:
                self._read(function, call, known, depth + 1)

        return enter if depth < DEEPEST else None

    def _function(self, called: ast.expr, given: Mapping[str, Any]) -> FunctionType | None:
        found: Any
        match called:
            case ast.Name(id=name):
                found = given.get(name)
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                holder = given.get(owner)
                found = getattr(holder, name, None) if isinstance(holder, ModuleType | type) else None
            case ast.Subscript(value=value):  # a kernel launched over a grid
                return self._function(value, given)
            case _:
                return None
        behind = guard.call(_behind, found)  # a proxy that is not set up raises whatever it is asked for
        if isinstance(behind, Raised) or behind.value is None:
            return None
        return behind.value if behind.value.__module__.partition(".")[0] == self.package else None

    def _read(self, function: FunctionType, call: ast.Call, known: Mapping[str, str], depth: int) -> None:
        body = definition(function)
        own = {a: known[v] for a, v in passed(body, call) if v in known} if body is not None else {}
        key = (function, tuple(sorted(own.items())))
        if body is None or not own or key in self._seen or len(self._seen) == MOST_ENTERED:
            return
        self._seen.add(key)
        self.entered.append(body)
        given = function.__globals__
        Reader(self.facts, own, given, entered=self.entering(given, depth)).read(body)


def _behind(found: Any) -> FunctionType | None:  # noqa: ANN401
    """The plain function behind something that decorators made of it. Raises whatever that raises."""
    found = inspect.unwrap(found) if callable(found) else found
    for attribute in _BEHIND:
        if isinstance(found, FunctionType):
            break
        found = getattr(found, attribute, None)
    return found if isinstance(found, FunctionType) else None


def passed(body: ast.FunctionDef, call: ast.Call) -> Iterator[tuple[str, str]]:
    """(parameter, the name that a call passes for it) pairs, up to the first `*args`."""
    for name, argument in zip(parameters_of(body), call.args, strict=False):
        if isinstance(argument, ast.Starred):
            break
        yield name, name_behind(argument)
    yield from ((k.arg, name_behind(k.value)) for k in call.keywords if k.arg is not None)
