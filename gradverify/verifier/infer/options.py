"""What a parameter may be: strings that it is compared with or looked up by, numbers at which paths part."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MOST_KEYS = 12
"""Keys of a table beyond which it is data and no list of options."""


def numbers_beside(operator: ast.cmpop, other: ast.expr) -> list[float]:
    """Numbers at which a comparison with another one comes out one way and the other."""
    try:
        number = ast.literal_eval(other)
    except (ValueError, TypeError):
        return []
    if not isinstance(number, int | float) or isinstance(number, bool):
        return []
    match operator:
        case ast.Eq() | ast.NotEq():
            return [number]
        case ast.Gt() | ast.LtE() if isinstance(number, int):
            return [number + 1, number]
        case ast.Lt() | ast.GtE() if isinstance(number, int):
            return [number, number - 1]
        case _:
            return []


def keys_of(table: ast.expr, tables: Mapping[str, list[str]]) -> list[str]:
    """The strings of a table or list that is written out, or of a named one."""
    match table:
        case ast.Dict(keys=keys):
            return strings_of([k for k in keys if k is not None])
        case ast.List(elts=entries) | ast.Tuple(elts=entries) | ast.Set(elts=entries):
            return strings_of(entries)
        case ast.Name(id=name):
            return tables.get(name, [])
        case _:
            return []


def strings_of(nodes: Sequence[ast.expr]) -> list[str]:
    """The values of literal strings; empty where some node is none."""
    found = [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return found if len(found) == len(nodes) <= MOST_KEYS else []


def tables_of(body: ast.FunctionDef, given: Mapping[str, Any]) -> dict[str, list[str]]:
    """The keys of tables and lists of strings by their name: of the module, then of the function itself."""
    names = {n.id for n in ast.walk(body) if isinstance(n, ast.Name)}
    found = {name: list(keys) for name, keys in _of_module(names, given)}
    for node in ast.walk(body):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found[name] = keys_of(value, found)
            case _:
                pass
    return found


def _of_module(names: set[str], given: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    for name in names & set(given):
        value = given[name]
        table = isinstance(value, dict | list | tuple | set | frozenset) and 0 < len(value) <= MOST_KEYS
        if table and all(isinstance(key, str) for key in value):
            yield name, list(value)
