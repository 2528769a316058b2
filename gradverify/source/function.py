"""The `torch.autograd.Function` subclasses of a module's source, with the methods they inherit inside it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gradverify.source.method import Method
from gradverify.source.tree import dotted, imported_names

METHODS = ("forward", "backward", "vjp", "setup_context", "jvp", "vmap")
"""The methods of a Function that torch calls."""


@dataclass(frozen=True)
class Function:
    """One class, its methods resolved along bases of the same module."""

    name: str
    node: ast.ClassDef
    methods: Mapping[str, Method]
    """Those whose source is known."""
    is_whole: bool
    """No base and no assignment may define or replace a method out of sight."""
    imported: Mapping[str, str]
    """What each imported name of the module stands for."""
    helpers: Mapping[str, ast.FunctionDef]
    """The functions at the top level of the module, by name."""

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
        if self.forward is None:
            return ()
        return self.forward.parameters if self.setup_context else self.forward.parameters[1:]

    @property
    def saving(self) -> tuple[Method, ...]:
        """The method that fills ctx; none where it is out of sight."""
        method = self.setup_context or self.forward
        return (method,) if method is not None and method.ctx else ()

    def defines(self, method: Method) -> bool:
        """Whether this class defines the method itself: findings on an inherited one name its owner."""
        return method.node in self.node.body


def functions_of(tree: ast.Module) -> tuple[Function, ...]:
    """Every Function of a module, in source order."""
    imported = imported_names(tree)
    helpers = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    by_name = {node.name: node for node in classes}
    ambiguous = {node.name for node in classes if by_name[node.name] is not node}
    found = (_methods(node, by_name, ambiguous, imported) for node in classes)
    functions = (
        Function(node.name, node, *methods, imported, helpers)
        for node, methods in zip(classes, found, strict=True)
        if methods is not None
    )
    return tuple(sorted(functions, key=lambda function: function.node.lineno))


def _methods(
    node: ast.ClassDef, by_name: Mapping[str, ast.ClassDef], ambiguous: set[str], imported: Mapping[str, str]
) -> tuple[dict[str, Method], bool] | None:
    """(methods, whether all are known) of a class that is a Function; None for another one."""
    methods: dict[str, Method] = {}
    blocked: set[str] = set()
    is_function, is_whole = False, not node.keywords
    for ancestor in _ancestry(node, by_name, ambiguous):
        if isinstance(ancestor, ast.ClassDef):
            own, replaced = _methods_of(ancestor)
            methods |= {name: m for name, m in own.items() if name not in methods and name not in blocked}
            blocked |= own.keys() | replaced
            continue
        full = dotted(ancestor, imported)
        if _is_torch_function(full):
            is_function = True
        elif full != "object":
            is_whole = False
    looks = {"forward", "backward"} <= methods.keys() and all(
        methods[name].is_static and methods[name].ctx == "ctx" for name in ("forward", "backward")
    )
    if not (is_function or looks):
        return None
    return methods, is_whole and not (blocked - methods.keys())


def _ancestry(
    node: ast.ClassDef, by_name: Mapping[str, ast.ClassDef], ambiguous: set[str], depth: int = 0
) -> Iterator[ast.ClassDef | ast.expr]:
    """A class and its bases, nearest first: as classes where their source is here."""
    yield node
    for base in node.bases:
        name = base.id if isinstance(base, ast.Name) else ""
        here = by_name.get(name) if name not in ambiguous else None
        if here is not None and here is not node and depth < len(by_name):
            yield from _ancestry(here, by_name, ambiguous, depth + 1)
        else:
            yield base


def _is_torch_function(full: str) -> bool:
    last = full.rpartition(".")[2]
    return full in {"Function", "autograd.Function"} or (
        full.startswith("torch.") and last in {"Function", "InplaceFunction"}
    )


def _methods_of(node: ast.ClassDef) -> tuple[dict[str, Method], set[str]]:
    """A class's own methods, and the names that are defined in another way, twice, or as abstract."""
    methods: dict[str, Method] = {}
    replaced: set[str] = set()
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name in METHODS:
            if item.name in methods:
                replaced.add(item.name)
            methods[item.name] = Method(item)
        elif not isinstance(item, ast.FunctionDef | ast.Expr | ast.Pass):
            replaced |= {n.id for n in ast.walk(item) if isinstance(n, ast.Name)} & set(METHODS)
            replaced |= {n.name for n in ast.walk(item) if isinstance(n, ast.FunctionDef)} & set(METHODS)
    replaced |= {name for name, method in methods.items() if _is_out_of_sight(method)}
    return {name: m for name, m in methods.items() if name not in replaced}, replaced


def _is_out_of_sight(method: Method) -> bool:
    """Whether a method is abstract, or called in a way of its own."""
    return method.is_abstract or "classmethod" in method.decorators or "ctx" in method.parameters[1:]
