"""What a module itself passes to a Function: literals, defaults of the wrapper, attributes of `self`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gradverify.model import Nested

_Scopes = tuple[ast.FunctionDef, ...]


@dataclass(frozen=True)
class Passed:
    """What the call sites say of one parameter."""

    literals: tuple[Nested, ...] = ()
    """Values found in the source, each once, in order."""
    is_parameter: bool = False
    """Some call passes an `nn.Parameter`: it is there to be trained."""
    is_given: bool = False
    """Some call passes something."""


def call_sites(
    source: str, function: str, names: Sequence[str], direct: frozenset[str] = frozenset()
) -> dict[str, Passed]:
    """Read every `function.apply(...)` of a module's source; empty where the source cannot be parsed.

    `direct` are expressions that are called as they stand: `mul`, `torch.ops.mylib.mul`.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return {}
    literals: dict[str, list[Nested]] = {name: [] for name in names}
    trained: set[str] = set()
    given: set[str] = set()
    aliases = _aliases(tree, function)
    for call, scopes, owner in _calls(tree, (), None):
        if not _applies(call, function, aliases) and ast.unparse(call.func) not in direct:
            continue
        for name, argument in _bound(call, names):
            given.add(name)
            found, value = _value(argument, scopes, owner)
            if found and value not in literals[name]:
                literals[name].append(value)
            if owner is not None and _is_parameter(argument, owner):
                trained.add(name)
    return {name: Passed(tuple(literals[name]), name in trained, name in given) for name in names}


def _bound(call: ast.Call, names: Sequence[str]) -> Iterator[tuple[str, ast.expr]]:
    """What a call passes, by the name of the parameter, up to the first `*args`."""
    for name, argument in zip(names, call.args, strict=False):
        if isinstance(argument, ast.Starred):
            break
        yield name, argument
    yield from ((k.arg, k.value) for k in call.keywords if k.arg in names)  # type: ignore[misc]


def _aliases(tree: ast.Module, function: str) -> set[str]:
    """Module-level names of `function.apply`."""
    return {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and _is_apply(node.value, function)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _is_apply(node: ast.expr, function: str) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "apply"
        and isinstance(node.value, ast.Name)
        and node.value.id == function
    )


def _applies(call: ast.Call, function: str, aliases: set[str]) -> bool:
    return _is_apply(call.func, function) or (isinstance(call.func, ast.Name) and call.func.id in aliases)


def _calls(
    node: ast.AST, scopes: _Scopes, owner: ast.ClassDef | None
) -> Iterator[tuple[ast.Call, _Scopes, ast.ClassDef | None]]:
    """Every call with the functions around it, innermost first, and the class around it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield child, scopes, owner
        yield from _calls(
            child,
            (child, *scopes) if isinstance(child, ast.FunctionDef) else scopes,
            child if isinstance(child, ast.ClassDef) else owner,
        )


def _value(node: ast.expr, scopes: _Scopes, owner: ast.ClassDef | None) -> tuple[bool, Nested]:
    """(whether the source gives a value, the value) of an argument."""
    found, value = _literal(node)
    if found:
        return True, value
    if isinstance(node, ast.Name):
        holder = next((s for s in scopes if node.id in _parameters(s)), None)
        default = _defaults(holder).get(node.id) if holder is not None else None
        return _literal(default) if default is not None else (False, None)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return _attribute(node.attr, owner)
    return False, None


def _literal(node: ast.expr) -> tuple[bool, Nested]:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False, None
    if isinstance(value, list):
        value = tuple(value)
    if isinstance(value, tuple) and not all(isinstance(v, int | float | str) for v in value):
        return False, None
    if value is not None and not isinstance(value, bool | int | float | str | tuple):
        return False, None
    return True, value


def _parameters(definition: ast.FunctionDef) -> set[str]:
    arguments = definition.args
    return {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}


def _defaults(definition: ast.FunctionDef) -> Mapping[str, ast.expr]:
    arguments = definition.args
    positional = [*arguments.posonlyargs, *arguments.args]
    paired = dict(zip((a.arg for a in reversed(positional)), reversed(arguments.defaults), strict=False))
    keyword = {
        a.arg: d for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None
    }
    return {**paired, **keyword}


def _attribute(name: str, owner: ast.ClassDef | None) -> tuple[bool, Nested]:
    """What `__init__` gives an attribute: a literal, or the default of its own parameter."""
    initial = _initializer(owner)
    if initial is None:
        return False, None
    for node in ast.walk(initial):
        if isinstance(node, ast.Assign) and any(_is_self(t, name) for t in node.targets):
            return _value(node.value, (initial,), None)
    return False, None


def _is_parameter(node: ast.expr, owner: ast.ClassDef) -> bool:
    initial = _initializer(owner)
    if initial is None or not isinstance(node, ast.Attribute):
        return False
    return any(
        isinstance(n, ast.Assign)
        and any(_is_self(t, node.attr) for t in n.targets)
        and isinstance(n.value, ast.Call)
        and ast.unparse(n.value.func).rpartition(".")[2] == "Parameter"
        for n in ast.walk(initial)
    )


def _initializer(owner: ast.ClassDef | None) -> ast.FunctionDef | None:
    methods = owner.body if owner is not None else []
    return next((m for m in methods if isinstance(m, ast.FunctionDef) and m.name == "__init__"), None)


def _is_self(node: ast.expr, name: str) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and node.attr == name
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    )
