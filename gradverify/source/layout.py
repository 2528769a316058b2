"""Where a method reads the memory of what it is given as if it were contiguous."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gradverify.source.memory import VIEWS, Aliases, steps
from gradverify.source.method import Method
from gradverify.source.tree import Place, dotted, each, integer, own_nodes

_LAYOUT = frozenset({"stride", "strides", "is_contiguous", "data_ptr_strides"})
"""What a method that allows for other layouts asks of a tensor."""


@dataclass(frozen=True)
class ContiguousRead:
    """One call."""

    place: Place
    parameter: str
    how: str
    """`kernel`, `address` or `view`."""
    shown: str
    """The kernel's name, or the call."""


def contiguous_reads(method: Method, imported: Mapping[str, str]) -> Iterator[ContiguousRead]:
    """Where a method so reads a parameter after ctx; nothing where it asks for a layout."""
    if any(node.attr in _LAYOUT for node in each(ast.Attribute, method.node)):
        return
    variadic = frozenset({method.variadic} - {""})
    given = {name: name for name in (*method.parameters[1:], *variadic)}
    aliases = Aliases(given, variadic, VIEWS - {"view"})
    calls = [node for node in method.nodes if isinstance(node, ast.Call)]
    handed = {id(address) for call in calls for address in _addresses_given(call, imported)}
    for step, known in steps(method.node.body, aliases):
        for call in own_nodes(step):
            if isinstance(call, ast.Call):
                for parameter, how, shown in _read(call, known, addressed=id(call) in handed):
                    yield ContiguousRead(Place.of(call), parameter, how, shown)


def _read(call: ast.Call, known: Aliases, *, addressed: bool) -> Iterator[tuple[str, str, str]]:
    kernel = _launched_kernel(call)
    given = next(filter(None, map(known.parameter, call.args)), "") if kernel else ""
    if given:
        yield given, "kernel", kernel
    match call.func:
        case ast.Attribute(value=value, attr="data_ptr") if addressed:
            how = "address"
        case ast.Attribute(value=value, attr="view") if _merges(call):
            how = "view"
        case _:
            return
    if parameter := known.parameter(value):
        yield parameter, how, ast.unparse(call)


def _merges(call: ast.Call) -> bool:
    """Whether a view puts several dimensions into one: `view(-1)`, `view(-1, d)`, `view(b, -1)`."""
    sizes = call.args
    if len(sizes) == 1 and isinstance(sizes[0], ast.Tuple | ast.List):
        sizes = sizes[0].elts
    numbers = [integer(size) for size in sizes]
    return len(sizes) <= 2 and -1 in numbers and 1 not in numbers


def _launched_kernel(call: ast.Call) -> str:
    """The kernel that `kernel[grid](...)` launches, empty for another call."""
    match call.func:
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Tuple() | ast.Lambda() | ast.Name() as grid):
            is_grid = not isinstance(grid, ast.Name) or "grid" in grid.id
            several = len(call.args) + len(call.keywords) > 3
            return name if is_grid and ("kernel" in name or several) else ""
        case _:
            return ""


def _addresses_given(call: ast.Call, imported: Mapping[str, str]) -> list[ast.expr]:
    """The `x.data_ptr()` given to a call that reads memory; empty for one that may only keep them.

    An address alone may be a key of a dictionary. A function that computes gets two at least, or one through
    ctypes.
    """
    given: list[ast.expr] = [
        a
        for a in call.args
        if isinstance(a, ast.Call) and isinstance(a.func, ast.Attribute) and a.func.attr == "data_ptr"
    ]
    by_ctypes = dotted(call.func, imported).startswith("ctypes.")
    return given if len(given) > 1 or by_ctypes else []
