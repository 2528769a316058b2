"""Which of the gradients that backward returns a place of its source takes part in, as its names tell."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gradverify.source import called_name, root_name


@dataclass
class Flow:
    """Of one backward: what flows where, whatever the order of its statements."""

    positions: dict[int, frozenset[int]] = field(default_factory=dict)
    """By the id of a statement, or of a value in the return statement: positions of gradients."""
    everything: frozenset[int] = frozenset()

    def of(self, node: ast.AST | None, parents: Mapping[int, ast.AST]) -> frozenset[int]:
        """The gradients that a node takes part in; all where that cannot be told."""
        found: frozenset[int] | None = None
        while node is not None:
            if id(node) in self.positions:
                found = self.positions[id(node)]
                if not isinstance(node, ast.stmt) or isinstance(node, ast.Return):
                    return found
            # A function inside of backward counts as one statement.
            node = parents.get(id(node))
            if found is not None and not _is_within_function(node, parents):
                return found
        return self.everything if found is None else found


def flow_of(tree: ast.FunctionDef, helpers: Sequence[ast.FunctionDef] = ()) -> Flow:
    """Of a backward that ends with one `return` of its gradients; nothing is known of others."""
    returned = [node for node in tree.body if isinstance(node, ast.Return)]
    value = returned[-1].value if returned else None
    values = value.elts if isinstance(value, ast.Tuple) else [value] if value is not None else []
    if not values or any(isinstance(v, ast.Starred) for v in values):
        return Flow()
    flow = Flow(everything=frozenset(range(len(values))))
    made = [
        *_made(tree),
        *((one, {one.name, f".{one.name}"}, set(_loaded(one)) - _own(one)) for one in helpers),
    ]
    behind: list[set[str]] = []
    for position, expression in enumerate(values):
        flow.positions[id(expression)] = frozenset({position})
        names = set(_loaded(expression))
        grows = True
        while grows:
            before = len(names)
            for _, defined, used in made:
                if defined & names:
                    names |= used
            grows = len(names) > before
        behind.append(names)
    for statement, defined, _ in made:
        flow.positions[id(statement)] = frozenset(k for k, names in enumerate(behind) if defined & names)
    return flow


def _made(
    tree: ast.AST, control: frozenset[str] = frozenset()
) -> Iterator[tuple[ast.stmt, set[str], set[str]]]:
    """Statements with the names that they make, and those that they use."""
    for statement in getattr(tree, "body", []) + getattr(tree, "orelse", []):
        match statement:
            case ast.FunctionDef(name=name):
                yield statement, {name, *_stored(statement)}, set(_loaded(statement)) | control
            case ast.For(target=target, iter=passes):
                used = control | set(_loaded(passes))
                yield from _made(statement, frozenset(used))
                yield statement, _names(target) | _stored(statement), set(used)
            case ast.If(test=test):
                used = control | set(_loaded(test))
                yield from _made(statement, frozenset(used))
                yield statement, _stored(statement), set(used)
            case ast.With():
                yield from _made(statement, control)
            case ast.Return():
                pass
            case _:
                yield statement, _stored(statement), set(_loaded(statement)) | control


def _own(function: ast.FunctionDef) -> set[str]:
    """Names of a function that stands beside: nothing outside of it has them."""
    given = {argument.arg for argument in ast.walk(function) if isinstance(argument, ast.arg)}
    names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    return given | {name.id for name in names if isinstance(name.ctx, ast.Store)}


def _stored(tree: ast.AST) -> set[str]:
    """Names that are set anywhere in a tree, or whose value is written into."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {root_name(node)}
        elif isinstance(node, ast.Call) and (
            called_name(node) == "append" or called_name(node).endswith("_")
        ):
            found |= {root_name(node.func)}
    return found


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _loaded(tree: ast.AST) -> list[str]:
    """Names that are read, and those of methods that are called, with a dot."""
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return names + [f".{func.attr}" for func in calls if isinstance(func, ast.Attribute)]


def _is_within_function(node: ast.AST | None, parents: Mapping[int, ast.AST]) -> bool:
    """Whether a function stands around a node that is not backward itself."""
    while node is not None:
        around = parents.get(id(node))
        if isinstance(node, ast.FunctionDef) and not isinstance(around, ast.Module | None):
            return True
        node = around
    return False
