"""What a Function's methods, and the helpers that they reach, touch outside of ctx and of their own names."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from gradverify.source.function import Function
from gradverify.source.tree import Place, dotted, every_parameter, name_of, names_stored, own_nodes, root_name


@dataclass(frozen=True)
class Outside:
    """One use of what is not the method's own."""

    place: Place
    by: str
    """The method or helper."""
    shown: str
    written: bool
    """Else it is read of the process."""


def used_outside(
    function: Function,
    methods: Collection[str],
    mutating: Mapping[bool, Collection[str]],
    state: Collection[str],
) -> Iterator[Outside]:
    """What some methods write outside, or read of what tells of `state`, by full names.

    `mutating` are the methods of a value that change it, by whether their result is used.
    """
    helpers, imported = function.module.functions, function.module.imported
    left = [m.node for name in methods if (m := function.methods.get(name)) is not None]
    seen = {*left}
    for method in left:  # it grows
        inside = [*own_nodes(*method.body)]
        named = [helpers.get(name_of(inner)) for inner in inside]
        found = [h for h in dict.fromkeys(named) if h is not None and h not in seen]
        seen |= {*found}
        left += found
        own = _own_names(method)
        alone = {id(inner.value) for inner in inside if isinstance(inner, ast.Expr)}
        for inner in inside:
            match inner:
                case ast.Name() | ast.Attribute() | ast.Subscript() if root_name(inner) not in own:
                    written = not isinstance(inner.ctx, ast.Load)
                    if written or (isinstance(inner, ast.Attribute) and dotted(inner, imported) in state):
                        yield Outside(Place.of(inner), method.name, _container(inner), written)
                case ast.Call():
                    owner = _changed(inner, mutating[id(inner) not in alone])
                    if owner is not None and root_name(owner) not in own | imported.keys():
                        yield Outside(Place.of(inner), method.name, _container(owner), written=True)
                case _:
                    pass


def _own_names(method: ast.FunctionDef) -> set[str]:
    """Its parameters and local names, and that of what has none."""
    nodes = [*ast.walk(method)]
    declared = {name for n in nodes if isinstance(n, ast.Global | ast.Nonlocal) for name in n.names}
    return ({*every_parameter(method), ""} | names_stored(nodes)) - declared


def _changed(call: ast.Call, mutating: Collection[str]) -> ast.expr | None:
    """What a call changes in place, as far as its name tells, which is one of some methods'."""
    match call:
        case ast.Call(func=ast.Attribute(value=owner, attr=attr)) if attr in mutating:
            return owner
        case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[owner, *_]):
            return owner
        case _:
            return None


def _container(node: ast.expr) -> str:
    """What is written, without the items of a container."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return ast.unparse(node)
