"""What a module itself passes to a target: literals, defaults of the wrapper, attributes of `self`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from gradverify.model import Nested
from gradverify.source import called_name, last_name, parameters_of, tree_of

FURTHEST = 2
"""Wrappers that a value is followed through: from the layer to the function that calls `apply`."""

MOST_LITERALS = 4
"""Values of one parameter that are kept: those of the nearest calls."""

KEPT_MODULES = 2
"""Modules whose calls are kept: that of the targets, and one more."""


@dataclass(frozen=True)
class Passed:
    """What the call sites say of one parameter."""

    literals: tuple[Nested, ...] = ()
    """Values found in the source, each once, in order."""
    is_parameter: bool = False
    """Some call passes an `nn.Parameter`: it is there to be trained."""
    is_given: bool = False
    """Some call passes something."""
    kinds: frozenset[str] = frozenset()
    """What it must be by the form of what is passed: `callable flag`."""


@dataclass(frozen=True)
class _Call:
    """A call, the functions around it, innermost first, and the class."""

    node: ast.Call
    scopes: tuple[ast.FunctionDef, ...] = ()
    owner: ast.ClassDef | None = None


def call_sites(
    source: str, function: str, names: Sequence[str], direct: frozenset[str] = frozenset()
) -> dict[str, Passed]:
    """Read every `function.apply(...)` of a module's source; empty where the source cannot be parsed.

    `direct` are expressions that are called as they are: `mul`, `torch.ops.mylib.mul`.
    """
    try:
        reading = _reading(source)
    except (SyntaxError, ValueError):
        return {}
    found = {name: Passed() for name in names}
    for call in reading.calls_of(function, direct):
        for name, argument in _bound(call.node, names):
            before = found[name]
            literals = list(before.literals)
            for value in reading.values(argument, call):
                if not any(value == o and type(value) is type(o) for o in literals):  # `True` is not 1
                    literals.append(value)
            found[name] = Passed(
                tuple(literals[:MOST_LITERALS]),
                before.is_parameter or _is_parameter(argument, call.owner),
                is_given=True,
                kinds=before.kinds | reading.kinds(argument, call),
            )
    return found


def _bound(call: ast.Call, names: Sequence[str]) -> Iterator[tuple[str, ast.expr]]:
    """What a call passes, by the name of the parameter, up to the first `*args`."""
    for name, argument in zip(names, call.args, strict=False):
        if isinstance(argument, ast.Starred):
            break
        yield name, argument
    yield from ((k.arg, k.value) for k in call.keywords if k.arg in names)  # type: ignore[misc]


class _Reading:
    """The calls of a module."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree, self._calls = tree, tuple(_calls(tree, (), None))
        self._aliases: dict[str, str] = {}
        for node in tree.body:
            if isinstance(node, ast.Assign) and (function := _applied(node.value)):
                self._aliases |= {t.id: function for t in node.targets if isinstance(t, ast.Name)}

    def calls_of(self, function: str, direct: frozenset[str]) -> Iterator[_Call]:
        """Calls of `function.apply`, under any name that the module gives to it."""
        for call in self._calls:
            called = call.node.func
            alias = isinstance(called, ast.Name) and self._aliases.get(called.id) == function
            named = bool(direct) and ast.unparse(called) in direct
            if (function and (alias or _applied(called) == function)) or named:
                yield call

    def values(self, node: ast.expr, place: _Call, depth: int = 0) -> Iterator[Nested]:
        """The values that the source gives for an argument."""
        found, value = _literal(node)
        if found:
            yield value
            return
        match node:
            case ast.Name(id=name):
                holder = next((s for s in place.scopes if name in _parameters(s)), None)
                if holder is not None:
                    yield from self._of_parameter(name, holder, place, depth)
                else:
                    yield from self._assigned(name, place)
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                initial = _initializer(place.owner)
                for statement in ast.walk(initial) if initial is not None else ():
                    if isinstance(statement, ast.Assign) and any(
                        _is_self(t, name) for t in statement.targets
                    ):
                        there = _Call(place.node, (initial,), place.owner)  # type: ignore[arg-type]
                        yield from self.values(statement.value, there, depth)
                        return
            case _:
                return

    def _of_parameter(self, name: str, holder: ast.FunctionDef, place: _Call, depth: int) -> Iterator[Nested]:
        """The default of a wrapper's parameter, then what is passed for it."""
        default = _defaults(holder).get(name)
        found, value = _literal(default) if default is not None else (False, None)
        if found:
            yield value
        called, order = holder.name, parameters_of(holder)
        if order[:1] in {("self",), ("cls",)}:
            order = order[1:]
            called = place.owner.name if called == "__init__" and place.owner is not None else ""
        for call in self._calls if called and depth < FURTHEST else ():
            if called_name(call.node) == called and holder not in call.scopes:
                for passed, argument in _bound(call.node, order):
                    if passed == name:
                        yield from self.values(argument, call, depth + 1)

    def _assigned(self, name: str, place: _Call) -> Iterator[Nested]:
        """The literal that a local name, or one of the module, is given once."""
        for nodes in (*map(ast.walk, place.scopes), iter(self._tree.body)):
            given = [n.value for n in nodes if isinstance(n, ast.Assign) and name in _targets(n)]
            if given:
                found, value = _literal(given[0]) if len(given) == 1 else (False, None)
                yield from (value,) if found else ()
                return

    def kinds(self, node: ast.expr, place: _Call) -> frozenset[str]:
        """What an argument must be by its form alone."""
        match node:
            case ast.Lambda():
                return frozenset({"callable"})
            case ast.UnaryOp(op=ast.Not()) | ast.Compare() | ast.Attribute(attr="training"):
                return frozenset({"flag"})
            case ast.Name(id=name) if not any(name in _parameters(s) for s in place.scopes):
                bodies = (*self._tree.body, *(n for s in place.scopes for n in s.body))
            case ast.Attribute(attr=name) if place.owner is not None and _is_self(node, name):
                bodies = (*place.owner.body,)
            case _:
                return frozenset()
        defined = any(isinstance(n, ast.FunctionDef) and n.name == name for n in bodies)
        return frozenset({"callable"} if defined else ())


@lru_cache(maxsize=KEPT_MODULES)
def _reading(source: str) -> _Reading:
    return _Reading(tree_of(source))


def _applied(node: ast.expr) -> str:
    """The `f` of `f.apply`, empty for anything else."""
    return last_name(node.value) if isinstance(node, ast.Attribute) and node.attr == "apply" else ""


def _calls(node: ast.AST, scopes: tuple[ast.FunctionDef, ...], owner: ast.ClassDef | None) -> Iterator[_Call]:
    """Every call with where it is."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield _Call(child, scopes, owner)
        inner = (child, *scopes) if isinstance(child, ast.FunctionDef) else scopes
        yield from _calls(child, inner, child if isinstance(child, ast.ClassDef) else owner)


def _targets(node: ast.Assign) -> set[str]:
    return {t.id for t in node.targets if isinstance(t, ast.Name)}


def _literal(node: ast.expr) -> tuple[bool, Nested]:
    """(whether it is one, a plain value or a tuple of them)."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False, None
    value = tuple(value) if isinstance(value, list) else value
    if isinstance(value, tuple):
        return all(isinstance(v, int | float | str) for v in value), value
    return value is None or isinstance(value, bool | int | float | str), value


def _parameters(body: ast.FunctionDef) -> set[str]:
    return {*parameters_of(body), *(a.arg for a in body.args.kwonlyargs)}


def _defaults(body: ast.FunctionDef) -> Mapping[str, ast.expr]:
    arguments = body.args
    paired = zip(reversed(parameters_of(body)), reversed(arguments.defaults), strict=False)
    keyword = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return {**dict(paired), **{a.arg: d for a, d in keyword if d is not None}}


def _is_parameter(node: ast.expr, owner: ast.ClassDef | None) -> bool:
    """Whether an expression is an attribute that `__init__` makes an `nn.Parameter`."""
    initial = _initializer(owner)
    return initial is not None and any(
        isinstance(n, ast.Assign)
        and called_name(n.value) == "Parameter"
        and any(isinstance(node, ast.Attribute) and _is_self(t, node.attr) for t in n.targets)
        for n in ast.walk(initial)
    )


def _initializer(owner: ast.ClassDef | None) -> ast.FunctionDef | None:
    methods = owner.body if owner is not None else []
    return next((m for m in methods if isinstance(m, ast.FunctionDef) and m.name == "__init__"), None)


def _is_self(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == name and getattr(node.value, "id", "") == "self"
