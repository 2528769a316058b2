"""Uses of parameters in the functions that forward hands them to: the launcher of a kernel, `_forward`."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

from gradverify.verifier import guard
from gradverify.verifier.collect.inference.called_names import name_behind
from gradverify.verifier.collect.inference.facts import Facts
from gradverify.verifier.collect.inference.options import note_numbers, note_options
from gradverify.verifier.collect.inference.uses import UseReader
from gradverify.verifier.guard import Raised

DEEPEST = 3
"""Functions within functions that are read."""

MOST_ENTERED = 30
"""Functions that are read for one target."""

_BEHIND = ("py_func", "fn", "func", "_torchdynamo_orig_callable")
"""Attributes under which compilers and decorators keep what they were given."""


def _behind(found: Any) -> FunctionType | None:  # noqa: ANN401
    """The plain function behind something that decorators made of it. Raises whatever that raises."""
    found = inspect.unwrap(found) if callable(found) else found
    for attribute in _BEHIND:
        if isinstance(found, FunctionType):
            break
        found = getattr(found, attribute, None)
    return found if isinstance(found, FunctionType) else None


@dataclass
class Helpers:
    """The user's own functions that were entered."""

    facts: Mapping[str, Facts]
    package: str
    """Only functions of this package are the user's own."""
    entered: list[ast.FunctionDef] = field(default_factory=list)
    _seen: set[tuple[object, ...]] = field(default_factory=set)

    def entering(
        self, around: Callable[..., Any] | None, depth: int = 0
    ) -> Callable[[ast.Call, Mapping[str, str]], None] | None:
        """What a reader of the function `around` calls go to; None where nothing of it can be found."""
        given = getattr(inspect.unwrap(around), "__globals__", None) if around is not None else None
        if given is None or depth == DEEPEST:
            return None

        def enter(call: ast.Call, known: Mapping[str, str]) -> None:
            function = self._function(call.func, given)
            if function is not None:
                self._read(function, call, known, depth + 1)

        return enter

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
        definition = _definition(function)
        if definition is None:
            return
        own = {a: known[v] for a, v in _passed(definition, call) if v in known}
        key = (function, tuple(sorted(own.items())))
        if not own or key in self._seen or len(self._seen) == MOST_ENTERED:
            return
        self._seen.add(key)
        self.entered.append(definition)
        inner = {name: Facts() for name in own.values()}
        reader = UseReader(inner, own, entered=self.entering(function, depth))
        for statement in definition.body:
            reader.visit(statement)
        note_options(definition, reader.strings_of, function.__globals__)
        note_numbers(definition, reader.numbers_of)
        for name, more in inner.items():
            self.facts[name].add(more)


def _definition(function: FunctionType) -> ast.FunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    return next((n for n in tree.body if isinstance(n, ast.FunctionDef)), None)


def _passed(definition: ast.FunctionDef, call: ast.Call) -> Iterator[tuple[str, str]]:
    """(parameter, the name that is passed for it) pairs of a call."""
    taken = [a.arg for a in (*definition.args.posonlyargs, *definition.args.args)]
    for name, argument in zip(taken, call.args, strict=False):
        if isinstance(argument, ast.Starred):
            break
        yield name, name_behind(argument)
    yield from ((k.arg, name_behind(k.value)) for k in call.keywords if k.arg is not None)
