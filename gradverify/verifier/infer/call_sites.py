"""Which parameters of a target a module passes an `nn.Parameter` for: they are there to be trained."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from gradverify.source import called_name, last_name, tree_of


def trained(source: str, function: str, names: Sequence[str]) -> frozenset[str]:
    """Those for which some `function.apply(x, self.weight)` of a layer passes one of its own parameters.

    `names` are those of the target in order; empty where the source cannot be parsed.
    """
    try:
        tree = tree_of(source)
    except (SyntaxError, ValueError):
        return frozenset()
    layers = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return frozenset(name for layer in layers for name in _of_layer(layer, function, names))


def _of_layer(layer: ast.ClassDef, function: str, names: Sequence[str]) -> Iterator[str]:
    assigned = [n for n in ast.walk(layer) if isinstance(n, ast.Assign)]
    held = {_own(t) for n in assigned if called_name(n.value) == "Parameter" for t in n.targets} - {""}
    for node in ast.walk(layer) if held else ():
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr="apply")) if last_name(value) == function:
                yield from (n for n, a in zip(names, node.args, strict=False) if _own(a) in held)
            case _:
                pass


def _own(node: ast.expr) -> str:
    """The `w` of `self.w`, empty for anything else."""
    is_own = isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self"
    return last_name(node) if is_own else ""
