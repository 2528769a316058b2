"""Syntax trees: what runs when a body runs; names, numbers and calls in an expression; where they stand."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

N = TypeVar("N", bound=ast.AST)

Def = ast.FunctionDef | ast.AsyncFunctionDef
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
ORDERING = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
INNER = (*DEFINITIONS, ast.Lambda)


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
        end = node.end_col_offset or node.col_offset + 1
        return cls(node.lineno, node.col_offset, lines_of(node)[-1], end, getattr(node, "name", ""))


def each(kind: type[N], tree: ast.AST) -> Iterator[N]:
    """Every node of a kind in a tree, from the top down."""
    return (node for node in ast.walk(tree) if isinstance(node, kind))


def lines_of(node: ast.expr | ast.stmt) -> range:
    """Its lines, without decorators."""
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


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
    match node:
        case ast.For(target=ast.Name(id=counter), iter=ast.Call(args=[_]) as rounds, body=body):
            inside = [n for statement in body for n in ast.walk(statement)]
            counted = any(isinstance(n, ast.AugAssign) or name_of(n) == counter for n in inside)
            return None if counted else rounds
        case _:
            return None


def own_nodes(*nodes: ast.AST) -> Iterator[ast.AST]:
    """Nodes and everything below them that runs when they run, in source order."""
    left = [*reversed(nodes)]
    while left:
        here = left.pop()
        if not isinstance(here, INNER):
            yield here
            left += reversed([*ast.iter_child_nodes(here)])


def names_in(tree: ast.AST) -> set[str]:
    """Every name in a tree, read or bound."""
    return {node.id for node in each(ast.Name, tree)}


def names_bound(body: Sequence[ast.stmt]) -> set[str]:
    """Every name that statements assign to, without functions inside."""
    return names_stored(own_nodes(*body))


def names_stored(nodes: Iterable[ast.AST]) -> set[str]:
    """The names among some nodes that are assigned to."""
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


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
    values: dict[int, ast.expr | None] = {}
    for node in own_nodes(*body):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            values |= {id(target): node.value for target in targets}
    found: dict[str, list[ast.expr | None]] = {}
    for name in (name for statement in body for name in each(ast.Name, statement)):
        if not isinstance(name.ctx, ast.Load):
            found.setdefault(name.id, []).append(values.get(id(name)))
    return found


def dotted(node: ast.expr, names: Mapping[str, str]) -> str:
    """The full name an expression stands for, empty for what is no name."""
    if isinstance(node, ast.Attribute):
        base = dotted(node.value, names)
        return f"{base}.{node.attr}" if base else ""
    return names.get(name_of(node), name_of(node))


def name_of(node: ast.AST | None) -> str:
    """The name that an expression is, empty for another one."""
    return node.id if isinstance(node, ast.Name) else ""


def last_name(node: ast.AST) -> str:
    """The last part of a dotted name, empty for what is no name."""
    return node.attr if isinstance(node, ast.Attribute) else name_of(node)


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
    return name_of(node)


def is_none(node: ast.AST | None) -> bool:
    """Whether an expression is the literal None."""
    return isinstance(node, ast.Constant) and node.value is None


def integer(node: ast.AST) -> int | None:
    """The value of a literal integer, also a negative one; None for anything else."""
    value = number(node)
    return value if isinstance(value, int) else None


def number(node: ast.AST, names: Mapping[str, float] = {}) -> int | float | None:
    """The value of a literal number, or of one of some names, with its sign; None for anything else."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            positive = number(operand, names)
            return None if positive is None else -positive
        case _:
            return names.get(name_of(node))


def parameters_of(function: Def) -> tuple[str, ...]:
    """The parameters that can be given by position, in order."""
    return tuple(a.arg for a in (*function.args.posonlyargs, *function.args.args))


def every_parameter(function: ast.FunctionDef) -> tuple[str, ...]:
    """The same with those by keyword only, `*args` and `**kwargs`."""
    arguments = function.args
    rest = (*arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
    return (*parameters_of(function), *(a.arg for a in rest if a is not None))


def defaults_of(arguments: ast.arguments) -> list[tuple[ast.arg, ast.expr | None]]:
    """Each parameter that holds one value, with its default: first those by position."""
    positional = [*arguments.posonlyargs, *arguments.args]
    missing = [None] * (len(positional) - len(arguments.defaults))
    defaults = (*missing, *arguments.defaults, *arguments.kw_defaults)
    return [*zip((*positional, *arguments.kwonlyargs), defaults, strict=True)]
