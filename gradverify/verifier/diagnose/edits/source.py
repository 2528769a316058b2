"""Backward's source as a tree that can be changed in one place, and compiled again.

Whether a backward may be run with a change in it: it computes with tensors, and does nothing else.

Edited code sees other values and indices than its author meant. Ordinary tensor operations raise at worst; a
kernel of the user's may read foreign memory, a `while` may never end, and what is written outside of the
function stays.

One change of backward's source, and expressions with letters for their parts.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor

from gradverify.source import definition, parameters_of, root_name

BUILTINS = frozenset(
    name
    for names in (
        "range len zip enumerate sum min max abs float int bool tuple list reversed slice isinstance",
        "sorted any all map dict round pow complex",
    )
    for name in names.split()
)
"""Builtin functions that do nothing but compute."""

OF_LISTS = frozenset(
    {"append", "items", "values", "keys", "insert", "extend", "pop", "copy", "reverse", "get"}
)
"""Methods of lists and dictionaries."""

REFUSED = (
    ast.While,
    ast.Try,
    ast.Global,
    ast.Import,
    ast.ImportFrom,
    ast.Delete,
    ast.Await,
    ast.Yield,
    ast.YieldFrom,
    ast.ClassDef,
    ast.AsyncFunctionDef,
    ast.Raise,
)
"""What a backward that is edited does not have."""

BEYOND_TENSORS = (
    "torch._ops",
    "torch.ops",
    "torch.utils",
    "torch.serialization",
    "torch.hub",
    "torch.distributed",
    "torch.multiprocessing",
    "torch.cuda",
)
"""Modules of torch that load, compile, or reach other processes and devices."""

DEEPEST = 4
"""Functions that call one another up to which the user's own are read."""


def is_harmless(function: FunctionType, tree: ast.AST, depth: int = 0) -> bool:
    """Whether all that a function does is computing with tensors, also in the functions that it calls."""
    local = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    own = parameters_of(tree) if depth == 0 and isinstance(tree, ast.FunctionDef) else ()
    context = own[0] if own else ""
    for node in ast.walk(tree):
        if isinstance(node, REFUSED):
            return False
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and root_name(node) != context:
            return False
        if _written(node) and resolved(ast.Name(_written(node), ast.Load()), function) is not None:
            return False
        if isinstance(node, ast.Call):
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            called = [node.func, *(g for g in given if _is_function(resolved(g, function)))]
            if not all(_may_be_called(func, function, local, depth) for func in called):
                return False
    return True


def _written(node: ast.AST) -> str:
    """The name of what a node writes into; empty where it writes into nothing."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return root_name(node)
    in_place = (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_")
    )
    return root_name(node.func) if in_place and isinstance(node, ast.Call) else ""


def _is_function(value: Any) -> bool:  # noqa: ANN401
    """Whether what is handed to a function may be called there."""
    return callable(value) and not isinstance(value, type)


def _may_be_called(func: ast.expr, function: FunctionType, local: set[str], depth: int) -> bool:
    if isinstance(func, ast.Name) and func.id in local:
        return True
    found = resolved(func, function)
    if found is None:
        # A method of a value: of a tensor, or of a list. What the value is, is seen when it runs.
        return isinstance(func, ast.Attribute) and (hasattr(Tensor, func.attr) or func.attr in OF_LISTS)
    if isinstance(func, ast.Name) and getattr(builtins, func.id, None) is found:
        return func.id in BUILTINS
    owner = resolved(func.value, function) if isinstance(func, ast.Attribute) else None
    if isinstance(owner, type) and not owner.__module__.startswith("torch") and not _is_own(found):
        return False  # `Other.apply` is torch's, and runs what the user wrote
    return computes(found, depth)


def computes(found: Any, depth: int) -> bool:  # noqa: ANN401
    """Whether a function that is no method does nothing but compute."""
    module = getattr(found, "__module__", "") or ""
    if module == "math" or _is_torchs(found, module):
        return True
    plain = inspect.unwrap(found) if callable(found) else found
    if not isinstance(plain, FunctionType) or depth >= DEEPEST:
        return False
    tree = definition(plain)
    return tree is not None and is_harmless(plain, tree, depth + 1)


def _is_own(found: Any) -> bool:  # noqa: ANN401
    return isinstance(inspect.unwrap(found), FunctionType) if callable(found) else False


def _is_torchs(found: Any, module: str) -> bool:  # noqa: ANN401
    """A function of torch: of its operations, not one that loads or compiles, nor a custom operator."""
    if module.startswith(BEYOND_TENSORS):
        return False
    if isinstance(found, type):
        return found in {torch.no_grad, torch.enable_grad, torch.Tensor}
    is_builtin = inspect.isbuiltin(found) or type(found).__name__ == "builtin_function_or_method"
    of_torch = module == "torch" or module.startswith("torch.")
    return of_torch or (is_builtin and hasattr(torch, getattr(found, "__name__", "")))


def resolved(expression: ast.expr, function: FunctionType) -> Any:  # noqa: ANN401
    """What a dotted name that is no local one stands for; None for anything else."""
    if isinstance(expression, ast.Attribute):
        owner = resolved(expression.value, function)
        known = isinstance(owner, ModuleType | type)
        return getattr(owner, expression.attr, None) if known else None
    if not isinstance(expression, ast.Name):
        return None
    name = expression.id
    if name in function.__code__.co_varnames or name in function.__code__.co_cellvars:
        return None
    if name in function.__code__.co_freevars:
        cell = (function.__closure__ or ())[function.__code__.co_freevars.index(name)]
        try:
            return cell.cell_contents
        except ValueError:
            return None
    return function.__globals__.get(name, getattr(builtins, name, None))


NAME_OF_FACTORY = "_gradverify_factory"
"""The function around an edited backward that holds what its closure holds."""

LONGEST_SOURCE = 12_000
"""Characters of a backward that is still edited: far more than anyone writes by hand."""


MOST_HELPERS = 6
"""Functions that are changed with a backward."""


@dataclass(frozen=True)
class Slot:
    """One place of a tree where a node stands."""

    parent: ast.AST
    field: str
    place: int
    """Number in the list that the field is; -1 where it is none."""
    node: ast.AST

    def put(self, other: ast.AST | list[ast.stmt]) -> None:
        """Another node there, or several statements."""
        if self.place < 0:
            setattr(self.parent, self.field, other)
        else:
            nodes: list[Any] = getattr(self.parent, self.field)
            nodes[self.place : self.place + 1] = other if isinstance(other, list) else [other]

    @contextmanager
    def holding(self, other: ast.AST | list[ast.stmt]) -> Iterator[None]:
        """The same while the context lasts."""
        for node in other if isinstance(other, list) else [other]:
            ast.fix_missing_locations(node)
        value = getattr(self.parent, self.field)
        before = list(value) if self.place >= 0 else value
        self.put(other)
        yield
        if self.place >= 0:
            value[:] = before
        else:
            self.put(before)


@dataclass(frozen=True)
class Source:
    """A function as a tree, whose lines are those of its file."""

    function: FunctionType
    tree: ast.FunctionDef
    helpers: tuple[ast.FunctionDef, ...] = ()
    """Functions of the same file that it alone calls."""

    @cached_property
    def whole(self) -> ast.Module:
        """The function with its helpers."""
        return ast.Module([*self.helpers, self.tree], [])

    @property
    def context(self) -> str:
        """What it calls its ctx."""
        return self.tree.args.args[0].arg if self.tree.args.args else ""

    @cached_property
    def _module(self) -> ast.Module:
        """A program that makes the function, of the very nodes of its tree, each with a place."""
        (factory,) = ast.parse(
            f"def {NAME_OF_FACTORY}({', '.join(self.function.__code__.co_freevars)}): ..."
        ).body
        assert isinstance(factory, ast.FunctionDef)  # noqa: S101
        factory.body = [*self.helpers, self.tree, ast.Return(ast.Name(self.tree.name, ast.Load()))]
        return ast.fix_missing_locations(ast.Module([factory], []))

    def compiled(self, more: Mapping[str, Any] | None = None) -> Callable[..., Any] | None:
        """The function of the tree as it is now, with more global names; None where it is no program."""
        names = {**self.function.__globals__, **(more or {})}
        try:
            exec(compile(self._module, "<backward with one change>", "exec"), names)  # noqa: S102 - the user's own code
            cells = [cell.cell_contents for cell in self.function.__closure__ or ()]
            made: Callable[..., Any] = names[NAME_OF_FACTORY](*cells)
        except (SyntaxError, ValueError, TypeError, RecursionError):
            return None
        return made


def source_of(function: Any) -> Source | None:  # noqa: ANN401 - the user's
    """The tree of a function without its decorators; None where its source cannot be had."""
    plain = inspect.unwrap(function)
    if not isinstance(plain, FunctionType):
        return None
    try:
        lines, first = inspect.getsourcelines(plain)
        text = textwrap.dedent("".join(lines))
        body = ast.parse(text).body if len(text) <= LONGEST_SOURCE else []
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    if len(body) != 1 or not isinstance(body[0], ast.FunctionDef):
        return None
    tree = body[0]
    tree.decorator_list = []
    ast.increment_lineno(tree, first - 1)
    return Source(plain, tree)


def slots(tree: ast.AST) -> Iterator[Slot]:
    """Every place of a tree, its own children first in the order of the source."""
    for field, value in ast.iter_fields(tree):
        nodes = value if isinstance(value, list) else [value]
        for place, node in enumerate(nodes):
            if isinstance(node, ast.AST):
                yield Slot(tree, field, place if isinstance(value, list) else -1, node)
                yield from slots(node)


def parents_of(tree: ast.AST) -> dict[int, ast.AST]:
    """The node that holds each, by the id of a node."""
    return {id(child): node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}


def with_helpers(source: Source, forward: Sequence[Source]) -> Source:
    """A backward with the functions of its file that are reached from it, and not from forward."""
    not_own = {id(one) for one in _reached(forward)}
    found = [one for one in _reached([source]) if id(one) not in not_own and _is_plain(one, source)]
    sources = [made for one in found[:MOST_HELPERS] if (made := source_of(one)) is not None]
    return replace(source, helpers=tuple(one.tree for one in sources))


def _reached(sources: Iterable[Source]) -> list[FunctionType]:
    """Functions of the user's module that are named in these, and in those in turn."""
    found: dict[int, FunctionType] = {}
    left = list(sources)
    while left:
        source = left.pop()
        for node in ast.walk(source.tree):
            named = resolved(node, source.function) if isinstance(node, ast.Name | ast.Attribute) else None
            if not isinstance(named, FunctionType) or named.__globals__ is not source.function.__globals__:
                continue
            if id(named) not in found:
                found[id(named)] = named
                left += [one for one in [source_of(named)] if one is not None]
    return [*found.values()]


def _is_plain(function: FunctionType, backward: Source) -> bool:
    """Whether a function stands in backward's module itself, and its name means it."""
    code, own = function.__code__, backward.function
    is_here = code.co_filename == own.__code__.co_filename and not hasattr(function, "__wrapped__")
    is_named = own.__globals__.get(function.__name__) is function
    shadowed = function.__name__ in own.__code__.co_varnames
    return is_here and is_named and not shadowed and not code.co_freevars


Node = ast.AST | list[ast.stmt]


@dataclass(frozen=True, eq=False)
class Edit:
    """Another node, or several statements, in one place."""

    slot: Slot
    node: Node
    cause: str
    """The cause whose mistake this takes back."""
    is_whole: bool = False
    """Whether the place is a statement's, so that nothing around it need be shown."""


def expression(text: str, **parts: ast.expr) -> ast.expr:
    """An expression with others in the place of names."""
    return filled(ast.parse(text, mode="eval").body, parts)


def filled(tree: ast.expr, parts: Mapping[str, ast.expr]) -> ast.expr:
    """An expression of its own with others in the place of names."""
    return _Filled(parts).visit(tree)  # type: ignore[no-any-return]


def matched(pattern: ast.expr, node: ast.AST) -> dict[str, ast.expr] | None:
    """What the small letters of a pattern stand for in an expression; None where it is no such one."""
    parts: dict[str, ast.expr] = {}
    return parts if _matches(pattern, node, parts) else None


def _matches(pattern: object, node: object, parts: dict[str, ast.expr]) -> bool:
    if isinstance(pattern, ast.Name) and len(pattern.id) == 1:
        if not isinstance(node, ast.expr):
            return False
        known = parts.setdefault(pattern.id, node)
        return known is node or ast.dump(known) == ast.dump(node)
    if type(pattern) is not type(node):
        return False
    if isinstance(pattern, list) and isinstance(node, list):
        same = len(pattern) == len(node)
        return same and all(_matches(p, n, parts) for p, n in zip(pattern, node, strict=True))
    if isinstance(pattern, ast.AST):
        fields = [name for name in pattern._fields if name != "ctx"]
        return all(_matches(getattr(pattern, f, None), getattr(node, f, None), parts) for f in fields)
    return pattern == node


class _Filled(ast.NodeTransformer):
    def __init__(self, parts: Mapping[str, ast.expr]) -> None:
        self.parts = parts

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """A part in the place of its name."""
        return self.parts.get(node.id, node)
