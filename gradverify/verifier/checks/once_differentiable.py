"""The change by which a backward says that it has no second derivative, as lines of its file."""

from __future__ import annotations

import ast
import inspect
import linecache
import warnings
from collections.abc import Iterator
from pathlib import Path

from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gradverify.model import LinePatch, SourceChange, shown_path
from gradverify.source import definition
from gradverify.verifier.checks.reading import own_backward

DECORATOR = once_differentiable.__name__


def marked_first_order(function: type[Function]) -> tuple[SourceChange, ...]:
    """`@once_differentiable` above backward, and its import where the module lacks it.

    Empty where backward's source, or that of its module, cannot be had.
    """
    backward = inspect.unwrap(own_backward(function))
    tree, code = definition(backward), getattr(backward, "__code__", None)
    if tree is None or code is None:
        return ()
    file, lines = Path(code.co_filename), linecache.getlines(code.co_filename)
    # Lines count from 1 at the first decorator, as the code's first line does.
    place = code.co_firstlineno + tree.lineno - 2
    if not place < len(lines) or not lines[place].lstrip().startswith("def "):
        return ()
    above = lines[place][: len(lines[place]) - len(lines[place].lstrip())] + f"@{DECORATOR}"
    changes = [*_imported(backward.__globals__, file, lines), _inserted(file, lines, place, above)]
    return tuple(changes)


def _imported(known: dict[str, object], file: Path, lines: list[str]) -> Iterator[SourceChange]:
    """The import, below the first one of the module, where the name is not known there yet."""
    if known.get(DECORATOR) is once_differentiable:
        return
    try:
        with warnings.catch_warnings(action="ignore"):
            body = ast.parse("".join(lines)).body
    except (SyntaxError, ValueError):
        return
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    last = imports[-1] if imports else None
    place = (last.end_lineno or last.lineno) if last is not None else 0
    if place < len(lines):
        yield _inserted(file, lines, place, f"from torch.autograd.function import {DECORATOR}")


def _inserted(file: Path, lines: list[str], place: int, text: str) -> SourceChange:
    """A line put before the one at an index."""
    here = lines[place].rstrip("\r\n")
    patch = LinePatch.within(shown_path(file), lines, place, place + 1, (text, here))
    return SourceChange(file.name, place + 1, "", text.strip(), patch, refuses=True)
