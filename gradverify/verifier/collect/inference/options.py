"""What a parameter may be: what it is compared with, and the strings of tables it is looked up in."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Of = Callable[[ast.expr], list[str] | None]
"""Where the strings of an expression are noted; None for one that is no parameter."""

MOST_KEYS = 12
"""Keys of a table beyond which it is data and no list of options."""


def note_options(definition: ast.FunctionDef, of: Of, given: Mapping[str, Any]) -> None:
    """Note the strings that a function's source names for what `of` knows; `given` are its global names."""
    tables = _tables(definition, given)
    for node in ast.walk(definition):
        for subject, strings in _named(node, tables):
            noted = of(subject)
            if noted is not None:
                noted += [s for s in strings if s not in noted]


def note_numbers(definition: ast.FunctionDef, of: Callable[[ast.expr], list[float] | None]) -> None:
    """Note the numbers of the source at which a parameter takes another path: equal to one, past another."""
    for node in ast.walk(definition):
        if not isinstance(node, ast.Compare) or len(node.ops) != 1:
            continue
        noted, number = of(node.left), _number(node.comparators[0])
        if noted is None or number is None:
            continue
        match node.ops[0]:
            case ast.Eq() | ast.NotEq():
                near = [number]
            case ast.Gt() | ast.LtE() if isinstance(number, int):
                near = [number + 1, number]
            case ast.Lt() | ast.GtE() if isinstance(number, int):
                near = [number, number - 1]
            case _:
                near = []
        noted += [n for n in near if n not in noted]


def _number(node: ast.expr) -> float | None:
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _named(node: ast.AST, tables: Mapping[str, list[str]]) -> Iterator[tuple[ast.expr, list[str]]]:
    """(what is asked for its value, strings that it may be)."""
    match node:
        case ast.Compare(left=left, comparators=[right], ops=[ast.Eq() | ast.NotEq()]):
            yield left, _strings([right])
            yield right, _strings([left])
        case ast.Compare(left=left, comparators=[right], ops=[ast.In() | ast.NotIn()]):
            yield left, _keys(right, tables)
        case ast.Subscript(value=table, slice=key):
            yield key, _keys(table, tables)
        case ast.Call(func=ast.Attribute(value=table, attr="get"), args=[key, *_]):
            yield key, _keys(table, tables)
        case ast.Match(subject=subject, cases=cases):
            patterns = [p for case in cases for p in ast.walk(case.pattern)]
            yield subject, _strings([p.value for p in patterns if isinstance(p, ast.MatchValue)])
        case _:
            return


def _keys(table: ast.expr, tables: Mapping[str, list[str]]) -> list[str]:
    match table:
        case ast.Dict(keys=keys):
            return _strings([k for k in keys if k is not None])
        case ast.List(elts=entries) | ast.Tuple(elts=entries) | ast.Set(elts=entries):
            return _strings(entries)
        case ast.Name(id=name):
            return tables.get(name, [])
        case _:
            return []


def _strings(nodes: list[ast.expr]) -> list[str]:
    found = [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return found if len(found) == len(nodes) <= MOST_KEYS else []


def _tables(definition: ast.FunctionDef, given: Mapping[str, Any]) -> dict[str, list[str]]:
    """The keys of tables and lists of strings by their name: of the module, then of the function itself."""
    names = {n.id for n in ast.walk(definition) if isinstance(n, ast.Name)}
    found = {
        name: [*value]
        for name, value in given.items()
        if name in names
        and isinstance(value, dict | list | tuple | set | frozenset)
        and 0 < len(value) <= MOST_KEYS
        and all(isinstance(key, str) for key in value)
    }
    for node in ast.walk(definition):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found[name] = _keys(value, found)
            case _:
                continue
    return found
