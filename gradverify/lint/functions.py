"""The `torch.autograd.Function` subclasses of a module's source, with the methods they inherit inside it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from gradverify.lint.walking import bindings, own_nodes_of

METHODS = ("forward", "backward", "vjp", "setup_context", "jvp", "vmap")
"""The methods of a Function that torch calls."""
TRANSPARENT = frozenset({"staticmethod", "once_differentiable", "custom_fwd", "custom_bwd"})
"""Decorators that hand arguments and results on as they are."""


@dataclass(frozen=True)
class Method:
    """One method of a Function."""

    name: str
    node: ast.FunctionDef
    parameters: tuple[str, ...]
    """Those that can be given by position, `ctx` included."""
    defaults: int
    """How many of them have a default."""
    variadic: str
    """The name of `*args`, empty without one."""
    decorators: tuple[str, ...]
    """Last name of each."""

    @property
    def ctx(self) -> str:
        """What the method calls its context; empty for none."""
        return self.parameters[0] if self.parameters else ""

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Everything that runs when the body runs, in source order."""
        return tuple(own_nodes_of(self.node.body))

    @cached_property
    def bindings(self) -> Mapping[str, list[ast.expr | None]]:
        """What each local name is bound to, everywhere; None for what cannot be read off."""
        return bindings(self.node.body)

    @property
    def is_static(self) -> bool:
        """Whether it is a `@staticmethod`."""
        return "staticmethod" in self.decorators

    @property
    def is_wrapped(self) -> bool:
        """Whether a decorator may change what it gets or gives."""
        return any(name not in TRANSPARENT and "custom_" not in name for name in self.decorators)


@dataclass(frozen=True)
class FunctionClass:
    """One class, its methods resolved along bases of the same module."""

    name: str
    node: ast.ClassDef
    methods: Mapping[str, Method]
    """Those whose source is known."""
    is_whole: bool
    """No base and no assignment may define or replace a method out of sight."""

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
        """Whether the method stands in this class itself: an inherited one is told where it stands."""
        return method.node in self.node.body


def imported_names(tree: ast.Module) -> dict[str, str]:
    """What each imported name stands for: `{"F": "torch.nn.functional"}`."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            for alias in node.names:
                names[alias.asname or alias.name] = f"{base}.{alias.name}"
    return names


def dotted(node: ast.expr, names: Mapping[str, str]) -> str:
    """The full name an expression stands for, empty for what is no name."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        base = dotted(node.value, names)
        return f"{base}.{node.attr}" if base else ""
    return ""


def function_classes(tree: ast.Module, names: Mapping[str, str]) -> tuple[FunctionClass, ...]:
    """Every Function of a module, in source order."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    by_name = {node.name: node for node in classes}
    ambiguous = {node.name for node in classes if by_name[node.name] is not node}
    found = (_function_class(node, by_name, ambiguous, names) for node in classes)
    return tuple(sorted(filter(None, found), key=lambda function: function.node.lineno))


def _function_class(
    node: ast.ClassDef, by_name: Mapping[str, ast.ClassDef], ambiguous: set[str], names: Mapping[str, str]
) -> FunctionClass | None:
    methods: dict[str, Method] = {}
    blocked: set[str] = set()
    is_function, is_whole = False, not node.keywords
    for ancestor in _ancestry(node, by_name, ambiguous):
        if isinstance(ancestor, ast.ClassDef):
            own, replaced = _methods_of(ancestor)
            methods |= {name: m for name, m in own.items() if name not in methods and name not in blocked}
            blocked |= own.keys() | replaced
            continue
        full = dotted(ancestor, names)
        if _is_torch_function(full):
            is_function = True
        elif full != "object":
            is_whole = False
    looks = {"forward", "backward"} <= methods.keys() and all(
        methods[name].is_static and methods[name].ctx == "ctx" for name in ("forward", "backward")
    )
    if not (is_function or looks):
        return None
    return FunctionClass(node.name, node, methods, is_whole and not (blocked - methods.keys()))


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
            methods[item.name] = _method(item)
        elif not isinstance(item, ast.FunctionDef | ast.Expr | ast.Pass):
            replaced |= {n.id for n in ast.walk(item) if isinstance(n, ast.Name)} & set(METHODS)
            replaced |= {n.name for n in ast.walk(item) if isinstance(n, ast.FunctionDef)} & set(METHODS)
    replaced |= {name for name, method in methods.items() if _is_out_of_sight(method)}
    return {name: m for name, m in methods.items() if name not in replaced}, replaced


def _method(node: ast.FunctionDef) -> Method:
    arguments = node.args
    return Method(
        node.name,
        node,
        tuple(a.arg for a in (*arguments.posonlyargs, *arguments.args)),
        len(arguments.defaults),
        arguments.vararg.arg if arguments.vararg is not None else "",
        tuple(last_name(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list),
    )


def _is_out_of_sight(method: Method) -> bool:
    """Whether a method is abstract (a docstring, `pass`, only a `raise`), or called in a way of its own."""
    abstract = all(
        isinstance(s, ast.Pass | ast.Raise) or (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
        for s in method.node.body
    )
    return abstract or "classmethod" in method.decorators or "ctx" in method.parameters[1:]


def last_name(node: ast.expr) -> str:
    """The last part of a dotted name, empty for what is no name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
