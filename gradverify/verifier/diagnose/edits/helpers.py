"""Functions beside a class, or static ones of it, that its backward alone calls: mistakes may stand there."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from types import FunctionType

from gradverify.verifier.diagnose.edits.harmless import resolved
from gradverify.verifier.diagnose.edits.source import Source, source_of

MOST_HELPERS = 6
"""Functions that are changed with a backward."""


def with_helpers(source: Source, forward: Sequence[Source]) -> Source:
    """A backward with the functions of its file that are reached from it, and not from forward."""
    not_own = {id(one) for one in _reached(forward)}
    found = [one for one in _reached([source]) if id(one) not in not_own]
    sources = [made for one in found[:MOST_HELPERS] if (made := _plain(one, source)) is not None]
    owners = [(owner, one.tree.name) for one in sources if (owner := owner_of(one.function)) is not None]
    return replace(source, helpers=tuple(one.tree for one in sources), methods=tuple(owners))


def _reached(sources: Iterable[Source]) -> list[FunctionType]:
    """Functions that are named in these, and in those in turn."""
    found: dict[int, FunctionType] = {}
    left = list(sources)
    while left:
        for function in _named(left.pop()):
            if id(function) not in found:
                found[id(function)] = function
                source = source_of(function)
                left += [] if source is None else [source]
    return [*found.values()]


def _named(source: Source) -> Iterator[FunctionType]:
    """Functions of the user's module that a function names."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Name | ast.Attribute):
            function = resolved(node, source.function)
            if isinstance(function, FunctionType) and function.__globals__ is source.function.__globals__:
                yield function


def owner_of(function: FunctionType) -> type | None:
    """The class of the module that a function is a static method of; None where it is none."""
    name, _, method = function.__qualname__.rpartition(".")
    owner = function.__globals__.get(name)
    if not isinstance(owner, type):
        return None
    kept = vars(owner).get(method)
    return owner if isinstance(kept, staticmethod) and kept.__func__ is function else None


def _plain(function: FunctionType, backward: Source) -> Source | None:
    """A function as a tree, if it stands in the module itself, or in a class there, and its name means it."""
    code = function.__code__
    known = backward.function.__globals__.get(function.__name__)
    is_named = known is function or (known is None and owner_of(function) is not None)
    shadowed = function.__name__ in backward.function.__code__.co_varnames
    is_here = code.co_filename == backward.function.__code__.co_filename
    if not is_named or shadowed or not is_here or code.co_freevars or hasattr(function, "__wrapped__"):
        return None
    return source_of(function)
