"""Syntax trees: what runs when a body runs; names, numbers and calls in an expression; where they stand."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

N = TypeVar("N", bound=ast.AST)

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_INNER = (*DEFINITIONS, ast.Lambda)


@dataclass(frozen=True)
class Place:
    """Where something stands: lines from 1, columns from 0 in bytes of UTF-8."""

    line: int
    start: int
    last_line: int
    end: int
    name: str = ""
    """That of a definition, by which it is shown."""

    @classmethod
    def of(cls, node: ast.expr | ast.stmt) -> Place:
        """That of a node."""
        last, end = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset + 1
        return cls(node.lineno, node.col_offset, last, end, getattr(node, "name", ""))


def each(kind: type[N], tree: ast.AST) -> Iterator[N]:
    """Every node of a kind in a tree, from the top down."""
    return (node for node in ast.walk(tree) if isinstance(node, kind))


def first_line(node: ast.stmt) -> int:
    """The first line of a statement, its decorators included."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(one.lineno for one in decorators)])


def classes_within(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.ClassDef]]:
    """Every class statement with its qualified name, in source order."""
    for node in ast.iter_child_nodes(tree):
        below = prefix
        if isinstance(node, DEFINITIONS):
            below += f"{node.name}." if isinstance(node, ast.ClassDef) else f"{node.name}.<locals>."
        if isinstance(node, ast.ClassDef):
            yield prefix + node.name, node
        if not isinstance(node, ast.expr):
            yield from classes_within(node, below)


def rounds_of(node: ast.AST) -> ast.Call | None:
    """The `range(50)` of an iteration: nothing in its loop counts, and no size is held against it."""
    if not (
        isinstance(node, ast.For) and isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Call)
    ):
        return None
    inside = [n for statement in node.body for n in ast.walk(statement)]
    counted = any(isinstance(n, ast.AugAssign) or getattr(n, "id", "") == node.target.id for n in inside)
    return node.iter if len(node.iter.args) == 1 and not counted else None


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """A node and everything below it that runs when it runs, in source order."""
    left = [node]
    while left:
        here = left.pop()
        yield here
        below = [child for child in ast.iter_child_nodes(here) if not isinstance(child, _INNER)]
        left += reversed(below)


def own_nodes_of(body: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """The same of a list of statements."""
    for statement in body:
        if not isinstance(statement, _INNER):
            yield from own_nodes(statement)


def names_in(tree: ast.AST) -> set[str]:
    """Every name in a tree, read or bound."""
    return {node.id for node in each(ast.Name, tree)}


def names_bound(body: Sequence[ast.stmt]) -> set[str]:
    """Every name that statements assign to, without functions inside."""
    nodes = own_nodes_of(body)
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def assigned(statement: ast.AST) -> tuple[str, ast.expr] | None:
    """(name, value) of `name = value`, annotated or not; None for another node."""
    match statement:
        case (
            ast.Assign(targets=[ast.Name(id=name)], value=value)
            | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
        ):
            return name, value
        case _:
            return None


def bindings(body: Sequence[ast.stmt]) -> dict[str, list[ast.expr | None]]:
    """What each local name is bound to, everywhere; None for a binding whose value cannot be read off."""
    found: dict[str, list[ast.expr | None]] = {}
    seen: set[int] = set()
    for node in own_nodes_of(body):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(node.value)
                    seen.add(id(target))
    for name in (name for statement in body for name in each(ast.Name, statement)):
        if not isinstance(name.ctx, ast.Load) and id(name) not in seen:
            found.setdefault(name.id, []).append(None)
    return found


def dotted(node: ast.expr, names: Mapping[str, str]) -> str:
    """The full name an expression stands for, empty for what is no name."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        base = dotted(node.value, names)
        return f"{base}.{node.attr}" if base else ""
    return ""


def last_name(node: ast.AST) -> str:
    """The last part of a dotted name, empty for what is no name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def called_name(node: ast.AST) -> str:
    """The last name of what is called: `mm` of `torch.mm(a, b)` and of `a.mm(b)`; empty for another node."""
    return last_name(node.func) if isinstance(node, ast.Call) else ""


def bare_name(node: ast.AST) -> str:
    """The last name of what is called, or of the expression itself: that of a decorator or a base."""
    return called_name(node) or last_name(node)


def root_name(node: ast.AST) -> str:
    """The name that an expression of attributes and items begins with; empty for none."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def is_none(node: ast.AST) -> bool:
    """Whether an expression is the literal None."""
    return isinstance(node, ast.Constant) and node.value is None


def integer(node: ast.AST) -> int | None:
    """The value of a literal integer, also a negative one; None for anything else."""
    match node:
        case ast.Constant(value=bool()):
            return None
        case ast.Constant(value=int() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            positive = integer(operand)
            return None if positive is None else -positive
        case _:
            return None


def parameters_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, ...]:
    """The parameters that can be given by position, in order."""
    return tuple(a.arg for a in (*function.args.posonlyargs, *function.args.args))


def every_parameter(function: ast.FunctionDef) -> tuple[str, ...]:
    """The same with those by keyword only, `*args` and `**kwargs`."""
    arguments = function.args
    rest = (*arguments.kwonlyargs, *filter(None, (arguments.vararg, arguments.kwarg)))
    return (*parameters_of(function), *(a.arg for a in rest))


def defaults_of(arguments: ast.arguments) -> list[tuple[ast.arg, ast.expr | None]]:
    """Each parameter that holds one value, with its default: first those by position."""
    positional = [*arguments.posonlyargs, *arguments.args]
    missing = [None] * (len(positional) - len(arguments.defaults))
    defaults = (*missing, *arguments.defaults, *arguments.kw_defaults)
    return [*zip((*positional, *arguments.kwonlyargs), defaults, strict=True)]
