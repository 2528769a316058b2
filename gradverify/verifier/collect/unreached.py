"""Functions of a module that no name of it leads to: made by a factory, defined in a function."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import BackwardCFunction

from gradverify.model import Target, TargetKind
from gradverify.source import functions_of, tree_of
from gradverify.verifier.collect.lines import classes_within, line_of

IN_A_FUNCTION = ".<locals>."
"""Stands in the qualified name of what is defined while a function runs (Python's own word)."""


def unreached(module: ModuleType, shown_path: str, reached: set[str]) -> tuple[Target, ...]:
    """The Functions that have a backward and are not among `reached` (qualified names), in source order.

    Those that exist already are found among the subclasses of `Function`, the others in the source.
    """
    lines = dict(_in_source(module))
    lines |= {c.__qualname__: line_of(c) for c in _alive(Function, module)}
    return tuple(
        Target(name, name, TargetKind.FUNCTION, shown_path, line, unreached=True)
        for name, line in sorted(lines.items(), key=lambda pair: pair[::-1])
        if name not in reached
    )


def applied_functions(outputs: tuple[Tensor, ...]) -> set[tuple[str, str]]:
    """(file, qualified name) of the Functions in the autograd graph behind some tensors."""
    nodes: list[Any] = [t.grad_fn for t in outputs]
    seen: set[Any] = set()
    found: set[type] = set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(node, BackwardCFunction):
            found.add(type(node)._forward_cls)  # type: ignore[attr-defined]  # noqa: SLF001 - its only name
        nodes += [following for following, _ in node.next_functions]
    return {(_file_of(c), c.__qualname__) for c in found}


def _file_of(value: type) -> str:
    return getattr(sys.modules.get(value.__module__), "__file__", None) or ""


def _alive(base: type[Function], module: ModuleType) -> Iterator[type[Function]]:
    """The Functions with a backward that methods of a module's own make up, whatever holds them."""
    for value in base.__subclasses__():
        yield from _alive(value, module)
        has_both = value.forward is not Function.forward and (
            value.backward is not Function.backward or value.vjp is not Function.vjp
        )
        if has_both and value.__module__ == module.__name__ and any(_is_of(m, module) for m in _own(value)):
            yield value


def _own(value: type) -> Iterator[Any]:
    return (getattr(member, "__func__", member) for member in vars(value).values())


def _is_of(member: Any, module: ModuleType) -> bool:  # noqa: ANN401 - whatever a class holds
    """Whether it is a function of this very module: one of its name may have been loaded before."""
    return isinstance(member, FunctionType) and member.__globals__ is vars(module)


def _in_source(module: ModuleType) -> Iterator[tuple[str, int]]:
    """Qualified name and line of the Functions with a backward that functions of a module define."""
    try:
        tree = tree_of(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError, ValueError):
        return
    whole = {id(f.node): f for f in functions_of(tree) if f.forward is not None and f.backward is not None}
    for name, node in classes_within(tree.body):
        if id(node) in whole and IN_A_FUNCTION in name:
            yield name, min([node.lineno, *(d.lineno for d in node.decorator_list)])
