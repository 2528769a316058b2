"""The line on which a class or a function is defined, from one parse of its file."""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType
from typing import Any


def line_of(value: Any) -> int:  # noqa: ANN401
    """Line of the definition, decorators included; 1 where it cannot be known.

    `inspect` parses the whole file again for every class it is asked about: 1.2 s for 45 Functions.
    """
    try:
        defined = inspect.unwrap(value) if callable(value) else value
        if isinstance(defined, type):
            return _line_of_class(defined)
        return inspect.getsourcelines(defined)[1]
    except (OSError, TypeError, ValueError, SyntaxError):
        return 1


def source_of_class(defined: type) -> str:
    """The text of its class statement, decorators included.

    Raises as `inspect.getsource` does.
    """
    file, span = _span_of_class(defined)
    if span is None:
        return inspect.getsource(defined)
    return "".join(linecache.getlines(file)[span[0] - 1 : span[1]])


def _line_of_class(defined: type) -> int:
    _, span = _span_of_class(defined)
    return inspect.getsourcelines(defined)[1] if span is None else span[0]


def _span_of_class(defined: type) -> tuple[str, tuple[int, int] | None]:
    """File, first and last line; of several with one name, of that which holds its own methods."""
    module = sys.modules.get(defined.__module__)
    file = inspect.getsourcefile(module or defined) or ""
    spans = _classes_of("".join(linecache.getlines(file))).get(defined.__qualname__, ())
    own = {code.co_firstlineno for code in _codes_of(defined) if code.co_filename == file}
    holding = [span for span in spans if any(span[0] <= line <= span[1] for line in own)]
    return file, next(iter((*holding, *spans[-1:])), None)


def _codes_of(defined: type) -> Iterator[CodeType]:
    for member in vars(defined).values():
        code = getattr(getattr(member, "__func__", member), "__code__", None)
        if isinstance(code, CodeType):
            yield code


@lru_cache(maxsize=8)
def _classes_of(source: str) -> dict[str, tuple[tuple[int, int], ...]]:
    """First and last lines of every class statement, by qualified name, in source order."""
    found: dict[str, tuple[tuple[int, int], ...]] = {}
    for name, node in classes_within(ast.parse(source).body):
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        found[name] = (*found.get(name, ()), (first, node.end_lineno or node.lineno))
    return found


def classes_within(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.ClassDef]]:
    """Every class statement with its qualified name, in source order."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield prefix + node.name, node
            yield from classes_within(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from classes_within(node.body, f"{prefix}{node.name}.<locals>.")
        else:
            yield from classes_within(
                [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)], prefix
            )
            for handler in getattr(node, "handlers", ()):
                yield from classes_within(handler.body, prefix)
