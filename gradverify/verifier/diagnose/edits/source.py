"""Backward's source as a tree that can be changed in one place, and compiled again."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from types import FunctionType
from typing import Any

from gradverify.verifier.diagnose.edits.harmless import resolved

NAME_OF_FACTORY = "_gradverify_factory"
"""The function around an edited backward that holds what its closure holds."""

LONGEST_SOURCE = 12_000
"""Characters of a backward that is still edited: far more than anyone writes by hand."""


MOST_HELPERS = 6
"""Functions that are changed with a backward."""


@dataclass(frozen=True)
class Slot:
    """One place of a tree where a node stands."""

    parent: ast.AST
    field: str
    place: int
    """Number in the list that the field is; -1 where it is none."""
    node: ast.AST

    def put(self, other: ast.AST | list[ast.stmt]) -> None:
        """Another node there, or several statements."""
        if self.place < 0:
            setattr(self.parent, self.field, other)
        else:
            nodes: list[Any] = getattr(self.parent, self.field)
            nodes[self.place : self.place + 1] = other if isinstance(other, list) else [other]

    @contextmanager
    def holding(self, other: ast.AST | list[ast.stmt]) -> Iterator[None]:
        """The same while the context lasts."""
        for node in other if isinstance(other, list) else [other]:
            ast.fix_missing_locations(node)
        value = getattr(self.parent, self.field)
        before = list(value) if self.place >= 0 else value
        self.put(other)
        yield
        if self.place >= 0:
            value[:] = before
        else:
            self.put(before)


@dataclass(frozen=True)
class Source:
    """A function as a tree, whose lines are those of its file."""

    function: FunctionType
    tree: ast.FunctionDef
    helpers: tuple[ast.FunctionDef, ...] = ()
    """Functions of the same file that it alone calls."""

    @cached_property
    def whole(self) -> ast.Module:
        """The function with its helpers."""
        return ast.Module([*self.helpers, self.tree], [])

    @property
    def context(self) -> str:
        """What it calls its ctx."""
        return self.tree.args.args[0].arg if self.tree.args.args else ""

    @cached_property
    def _module(self) -> ast.Module:
        """A program that makes the function, of the very nodes of its tree, each with a place."""
        (factory,) = ast.parse(
            f"def {NAME_OF_FACTORY}({', '.join(self.function.__code__.co_freevars)}): ..."
        ).body
        assert isinstance(factory, ast.FunctionDef)  # noqa: S101
        factory.body = [*self.helpers, self.tree, ast.Return(ast.Name(self.tree.name, ast.Load()))]
        return ast.fix_missing_locations(ast.Module([factory], []))

    def compiled(self, more: Mapping[str, Any] | None = None) -> Callable[..., Any] | None:
        """The function of the tree as it is now, with more global names; None where it is no program."""
        names = {**self.function.__globals__, **(more or {})}
        try:
            exec(compile(self._module, "<backward with one change>", "exec"), names)  # noqa: S102 - the user's own code
            cells = [cell.cell_contents for cell in self.function.__closure__ or ()]
            made: Callable[..., Any] = names[NAME_OF_FACTORY](*cells)
        except (SyntaxError, ValueError, TypeError, RecursionError):
            return None
        return made


def source_of(function: Any) -> Source | None:  # noqa: ANN401 - the user's
    """The tree of a function without its decorators; None where its source cannot be had."""
    plain = inspect.unwrap(function)
    if not isinstance(plain, FunctionType):
        return None
    try:
        lines, first = inspect.getsourcelines(plain)
        text = textwrap.dedent("".join(lines))
        body = ast.parse(text).body if len(text) <= LONGEST_SOURCE else []
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    if len(body) != 1 or not isinstance(body[0], ast.FunctionDef):
        return None
    tree = body[0]
    tree.decorator_list = []
    ast.increment_lineno(tree, first - 1)
    return Source(plain, tree)


def slots(tree: ast.AST) -> Iterator[Slot]:
    """Every place of a tree, its own children first in the order of the source."""
    for field, value in ast.iter_fields(tree):
        nodes = value if isinstance(value, list) else [value]
        for place, node in enumerate(nodes):
            if isinstance(node, ast.AST):
                yield Slot(tree, field, place if isinstance(value, list) else -1, node)
                yield from slots(node)


def with_helpers(source: Source, forward: Sequence[Source]) -> Source:
    """A backward with the functions of its file that are reached from it, and not from forward."""
    not_own = {id(one) for one in _reached(forward)}
    found = [one for one in _reached([source]) if id(one) not in not_own and _is_plain(one, source)]
    sources = [made for one in found[:MOST_HELPERS] if (made := source_of(one)) is not None]
    return replace(source, helpers=tuple(one.tree for one in sources))


def _reached(sources: Iterable[Source]) -> list[FunctionType]:
    """Functions of the user's module that are named in these, and in those in turn."""
    found: dict[int, FunctionType] = {}
    left = list(sources)
    while left:
        source = left.pop()
        for node in ast.walk(source.tree):
            named = resolved(node, source.function) if isinstance(node, ast.Name | ast.Attribute) else None
            if not isinstance(named, FunctionType) or named.__globals__ is not source.function.__globals__:
                continue
            if id(named) not in found:
                found[id(named)] = named
                left += [one for one in [source_of(named)] if one is not None]
    return [*found.values()]


def _is_plain(function: FunctionType, backward: Source) -> bool:
    """Whether a function stands in backward's module itself, and its name means it."""
    code, own = function.__code__, backward.function
    is_here = code.co_filename == own.__code__.co_filename and not hasattr(function, "__wrapped__")
    is_named = own.__globals__.get(function.__name__) is function
    shadowed = function.__name__ in own.__code__.co_varnames
    return is_here and is_named and not shadowed and not code.co_freevars
