"""The `torch.autograd.Function` subclasses of a module's source, with the methods they inherit inside it."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gradverify.source.method import Method
from gradverify.source.module import Module, module_of
from gradverify.source.tree import classes_within, dotted, each, first_line, name_of, names_in

METHODS = ("forward", "backward", "vjp", "setup_context", "jvp", "vmap")
"""The methods of a Function that torch calls."""


@dataclass(frozen=True)
class Function:
    """One class, its methods resolved along bases of the same module."""

    qualified_name: str
    node: ast.ClassDef
    methods: Mapping[str, Method]
    """Those whose source is known."""
    is_whole: bool
    """No base and no assignment may define or replace a method out of sight."""
    module: Module

    @property
    def name(self) -> str:
        """Its own name."""
        return self.node.name

    @property
    def line(self) -> int:
        """The first line, decorators included."""
        return first_line(self.node)

    @property
    def of_instances(self) -> set[str] | None:
        """Attributes that the class's `__init__` sets; None without one."""
        found = [n for n in self.node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
        stored = (n for body in found for n in each(ast.Attribute, body) if isinstance(n.ctx, ast.Store))
        return {node.attr for node in stored} if found else None

    @property
    def forward(self) -> Method | None:
        """The method whose source is known."""
        return self.methods.get("forward")

    @property
    def backward(self) -> Method | None:
        """`backward`, or `vjp` where the class defines that instead."""
        return self.methods.get("backward") or self.methods.get("vjp")

    @property
    def setup_context(self) -> Method | None:
        """Where `forward` has no ctx."""
        return self.methods.get("setup_context")

    @property
    def inputs(self) -> tuple[str, ...]:
        """Forward's parameters without its ctx."""
        parameters = self.forward.parameters if self.forward else ()
        return parameters if self.setup_context else parameters[1:]

    @property
    def saving(self) -> tuple[Method, ...]:
        """The method that fills ctx; none where it is out of sight."""
        method = self.setup_context or self.forward
        return (method,) if method is not None and method.ctx else ()

    def defines(self, method: Method) -> bool:
        """Whether this class defines the method itself: findings on an inherited one name its owner."""
        return method.node in self.node.body


def functions_of(source: str | bytes) -> tuple[Function, ...]:
    """Every Function of a module's text, in source order."""
    module = module_of(source)
    classes = [*classes_within(module.tree)]
    times = Counter(node.name for _, node in classes)
    unique = {node.name: node for _, node in classes if times[node.name] == 1}
    found = ((name, node, _methods(node, unique, module.imported)) for name, node in classes)
    return tuple(Function(name, node, *methods, module) for name, node, methods in found if methods)


def _methods(
    node: ast.ClassDef, classes: Mapping[str, ast.ClassDef], imported: Mapping[str, str]
) -> tuple[dict[str, Method], bool] | None:
    """(methods, whether all are known) of a class that is a Function; None for another one."""
    found: dict[str, Method | None] = {}
    bases: set[str] = set()
    for ancestor in _ancestry(node, classes):
        if isinstance(ancestor, ast.ClassDef):
            found = _methods_of(ancestor) | found
        else:
            bases.add(dotted(ancestor, imported))
    methods = {name: method for name, method in found.items() if method is not None}
    of_torch = set(filter(_is_torch_function, bases))
    pair = methods.get("forward"), methods.get("backward")
    looks = all(method is not None and method.is_static and method.ctx == "ctx" for method in pair)
    if not (of_torch or looks):
        return None
    return methods, not node.keywords and bases <= of_torch | {"object"} and len(methods) == len(found)


def _ancestry(
    node: ast.ClassDef, classes: Mapping[str, ast.ClassDef], depth: int = 0
) -> Iterator[ast.ClassDef | ast.expr]:
    """A class and its bases, nearest first: as classes where their source is here."""
    yield node
    for base in node.bases:
        here = classes.get(name_of(base))
        if here is not None and here is not node and depth < len(classes):
            yield from _ancestry(here, classes, depth + 1)
        else:
            yield base


def _is_torch_function(full: str) -> bool:
    of_torch = full.startswith("torch.") and full.endswith((".Function", ".InplaceFunction"))
    return of_torch or full in {"Function", "autograd.Function"}


def _methods_of(node: ast.ClassDef) -> dict[str, Method | None]:
    """A class's own methods; None for one that is defined in another way, twice, or as abstract."""
    methods: dict[str, Method | None] = {}
    for item in node.body:
        if not isinstance(item, ast.FunctionDef | ast.Expr | ast.Pass):
            named = names_in(item) | {inner.name for inner in each(ast.FunctionDef, item)}
            methods |= dict.fromkeys(named & {*METHODS})
        elif isinstance(item, ast.FunctionDef) and item.name in METHODS:
            method = Method(item)
            methods[item.name] = None if item.name in methods or _is_out_of_sight(method) else method
    return methods


def _is_out_of_sight(method: Method) -> bool:
    """Whether a method is a docstring, `pass` or a `raise` alone, or called in a way of its own."""
    does = (s.value if isinstance(s, ast.Expr) else s for s in method.node.body)
    is_abstract = all(isinstance(one, ast.Pass | ast.Raise | ast.Constant) for one in does)
    return is_abstract or "classmethod" in method.decorators or "ctx" in method.parameters[1:]
