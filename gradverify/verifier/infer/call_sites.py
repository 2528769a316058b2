"""What a module itself passes to a target: literals, defaults of the wrapper, attributes of `self`."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeGuard

from torch import nn

from gradverify.model import Nested
from gradverify.source import applied, called_name, last_name, module_of, name_of, parameters_of

FURTHEST = 2
"""Wrappers that a value is followed through: from the layer to the function that calls `apply`."""

MOST_LITERALS = 4
"""Values of one parameter that are kept: those of the nearest calls."""

KEPT_MODULES = 2
"""Modules whose calls are kept: that of the targets, and one more."""


_CASTS: Mapping[str, frozenset[str]] = {
    "int": frozenset({"int", "whole"}),
    "len": frozenset({"int", "whole"}),
    "float": frozenset({"float"}),
    "bool": frozenset({"flag"}),
}
"""What a value is that was cast, or annotated so; `whole` is an integer and nothing else."""


@dataclass(frozen=True)
class Passed:
    """What the call sites say of one parameter."""

    literals: tuple[Nested, ...] = ()
    """Values found in the source, each once, in order."""
    is_parameter: bool = False
    """Some call passes an `nn.Parameter`, or what requires grad: it is there to be trained."""
    is_buffer: bool = False
    """Some call passes a buffer of a module, which is not."""
    is_detached: bool = False
    """Every call passes what is computed without a gradient: `x.detach()`, `with torch.no_grad():`."""
    made_of: frozenset[str] = frozenset()
    """What some call makes it of, among the other arguments: `f(x, x.mean())`."""
    is_given: bool = False
    """Some call passes something."""
    kinds: frozenset[str] = frozenset()
    """What it must be by the form of what is passed, or by a wrapper's annotation: `callable flag tensor`."""
    default: Any = ...
    """What it is where the wrappers are left to their defaults, if all agree; `...` for none."""


@dataclass(frozen=True)
class _Call:
    """A call, the functions around it, innermost first, and the class."""

    node: ast.Call
    scopes: tuple[ast.FunctionDef, ...] = ()
    owner: ast.ClassDef | None = None


def call_sites(
    source: str, function: str, names: Sequence[str], direct: frozenset[str] = frozenset()
) -> dict[str, Passed]:
    """Read every `function.apply(...)` of a module's source; none where that cannot be parsed.

    `direct` are expressions that are called as they are: `mul`, `torch.ops.mylib.mul`.
    """
    reading = _reading(source)
    found = {name: Passed() for name in names}
    for call in reading.calls_of(function, direct):
        bound = dict(_bound(call.node, names))
        for name, argument in bound.items():
            before = found[name]
            default = reading.default(argument, call)
            agree = not before.is_given or _is_same(before.default, default)
            literals = list(before.literals)
            for value in reading.values(argument, call):
                if not any(_is_same(value, o) for o in literals):
                    literals.append(value)
            is_learned, is_buffer = reading.is_learned(argument, call), _is_buffer(argument, call.owner)
            is_detached = reading.is_detached(argument, call) and (before.is_detached or not before.is_given)
            made_of = _made_of(argument, call, bound)
            is_tensor = (
                is_learned or is_buffer or (is_detached and bool(made_of) and not _casts(argument, call))
            )
            found[name] = Passed(
                tuple(literals[:MOST_LITERALS]),
                before.is_parameter or is_learned,
                before.is_buffer or is_buffer,
                is_detached,
                before.made_of | made_of,
                is_given=True,
                kinds=before.kinds
                | reading.kinds(argument, call)
                | frozenset({"tensor"} if is_tensor else ()),
                default=default if agree else ...,
            )
    return found


def _is_same(value: Any, other: Any) -> bool:  # noqa: ANN401
    """Whether two values are one: `True` is not 1."""
    return type(value) is type(other) and value == other


def _bound(call: ast.Call, names: Sequence[str]) -> Iterator[tuple[str, ast.expr]]:
    """What a call passes, by the name of the parameter, up to the first `*args`."""
    for name, argument in zip(names, call.args, strict=False):
        if isinstance(argument, ast.Starred):
            break
        yield name, argument
    yield from ((k.arg, k.value) for k in call.keywords if k.arg in names)  # type: ignore[misc]


def _applies(call: _Call, function: str) -> bool:
    """Whether it is `function.apply(...)`: of two classes `Fn` within others it is that of the same one."""
    *_, holder, name = ("", *function.split("."))
    called = call.node.func
    if not isinstance(called, ast.Attribute) or applied(called) != name:
        return False
    given = last_name(called.value.value) if isinstance(called.value, ast.Attribute) else ""
    own = call.owner.name if given in {"self", "cls"} and call.owner is not None else given
    return not holder or own in {"", holder}


class _Reading:
    """The calls of a module."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree, self._calls = tree, tuple(_calls(tree, (), None))
        imports = (n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom))
        self._imported = {(a.asname or a.name).partition(".")[0] for n in imports for a in n.names}
        self._aliases: dict[str, str] = {}
        for node in tree.body:
            if isinstance(node, ast.Assign) and (function := applied(node.value)):
                self._aliases |= {t.id: function for t in node.targets if isinstance(t, ast.Name)}

    def calls_of(self, function: str, direct: frozenset[str]) -> Iterator[_Call]:
        """Calls of `function.apply`, under any name that the module gives to it."""
        name = function.rpartition(".")[2]
        for call in self._calls:
            called = call.node.func
            alias = isinstance(called, ast.Name) and self._aliases.get(called.id) == name
            named = bool(direct) and ast.unparse(called) in direct
            if (function and (alias or _applies(call, function))) or named:
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
                    given = self._of_parameter(name, holder, place, depth)
                    rebound = _is_rebound(name, holder, place)
                    yield from (v for v in given if v is not None or not rebound)
                else:
                    yield from self._assigned(name, place)
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                initial = _initializer(place.owner)
                for statement in ast.walk(initial) if initial is not None else ():
                    if _gives_to_self(statement, name):
                        there = _Call(place.node, (initial,), place.owner)  # type: ignore[arg-type]
                        yield from self.values(statement.value, there, depth)
                        return
            case _:
                return

    def default(self, node: ast.expr, place: _Call) -> Any:  # noqa: ANN401
        """The literal that an argument is where the function around the call is left to its defaults."""
        match node:
            case ast.Name(id=name):
                holder = next((s for s in place.scopes if name in _parameters(s)), None)
                given = _defaults(holder).get(name) if holder is not None else None
                found, value = _literal(given) if given is not None else (False, None)
                kept = value is not None or holder is None or not _is_rebound(name, holder, place)
                return value if found and kept else ...
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                initial = _initializer(place.owner)
                for statement in ast.walk(initial) if initial is not None else ():
                    if _gives_to_self(statement, name):
                        there = _Call(place.node, (initial,))  # type: ignore[arg-type]
                        return self.default(statement.value, there)
            case ast.Call(func=ast.Name(id=cast), args=[inner]) if cast in _CASTS:
                return self.default(inner, place)
            case _:
                pass
        return ...

    def _of_parameter(self, name: str, holder: ast.FunctionDef, place: _Call, depth: int) -> Iterator[Nested]:
        """The default of a wrapper's parameter, then what is passed for it."""
        default = _defaults(holder).get(name)
        found, value = _literal(default) if default is not None else (False, None)
        if found:
            yield value
        for argument, call in self._passed_for(name, holder, place) if depth < FURTHEST else ():
            yield from self.values(argument, call, depth + 1)

    def _passed_for(
        self, name: str, holder: ast.FunctionDef, place: _Call
    ) -> Iterator[tuple[ast.expr, _Call]]:
        """What is passed for a wrapper's parameter, and the calls."""
        called, order = holder.name, parameters_of(holder)
        if order[:1] in {("self",), ("cls",)}:
            order = order[1:]
            called = place.owner.name if called == "__init__" and place.owner is not None else ""
        for call in self._calls if called else ():
            if called_name(call.node) == called and holder not in call.scopes:
                every = _bound(call.node, order)
                yield from ((argument, call) for passed, argument in every if passed == name)

    def is_learned(self, node: ast.expr, place: _Call, depth: int = 0) -> bool:
        """Whether an argument requires grad: a parameter, what is made of one, or what a layer returns."""
        holder = None
        if isinstance(node, ast.Name):
            given = _given(node.id, place)
            holder = next((s for s in place.scopes if node.id in _parameters(s)), None)
            if any(_is_without_grad(statement, place) for statement in given):
                return False
            node = given[0].value if len(given) == 1 else node
        if any(last_name(n) in STOPS for n in ast.walk(node)):
            return False
        if _asks_for_grad(node) or any(self._has(n, member, place.owner) for n, member in _members(node)):
            return True
        passed = (
            self._passed_for(getattr(node, "id", ""), holder, place) if holder and depth < FURTHEST else ()
        )
        return any(self.is_learned(argument, call, depth + 1) for argument, call in passed)

    def is_detached(self, argument: ast.expr, place: _Call) -> bool:
        """Whether a tensor that a call passes has no gradient, by all that gives it its value."""
        own = {name for scope in place.scopes for name in _parameters(scope)}
        name = argument.id if isinstance(argument, ast.Name) else ""
        given = _given(name, place) if name not in own else []
        values = [s.value for s in given if not _is_without_grad(s, place)] if given else [argument]
        detached = frozenset({"detach"})
        return all(
            _names(value, detached) <= self._imported and bool(_names(value) - self._imported)
            for value in values
        )

    def _has(
        self, name: str, member: str, owner: ast.ClassDef | None, seen: frozenset[ast.AST] = frozenset()
    ) -> bool:
        """Whether an attribute of a module, or of its base, is a parameter, or made of one, or a layer.

        Of a layer that is not called, the member has to be a parameter: `self.norm.weight`. `seen` are
        properties and classes on the way, as they may name each other: `class Linear(Linear)`.
        """
        nodes = [*ast.walk(owner)] if owner is not None else []
        given = [
            n.value
            for n in nodes
            if isinstance(n, ast.Assign) and any(name in dict(_members(t)) for t in n.targets)
        ]
        if any(_asks_for_grad(value) or any(_learns(n, member) for n in ast.walk(value)) for value in given):
            return True
        if any(called_name(n) == "register_parameter" and name in _strings(n) for n in nodes):
            return True
        functions = (n for n in nodes if isinstance(n, ast.FunctionDef) and n not in seen)
        made = [n for n in functions if n.name == name and _is_property(n)]
        others = {pair for n in made for pair in _members(n)}
        if any(self._has(other, m, owner, seen.union(made)) for other, m in others):
            return True
        bases = [name_of(base) for base in owner.bases] if owner is not None else []
        classes = (c for c in self._tree.body if isinstance(c, ast.ClassDef) and c.name in bases)
        further = [c for c in classes if c is not owner and c not in seen]
        return any(self._has(name, member, base, seen.union(further)) for base in further)

    def _assigned(self, name: str, place: _Call) -> Iterator[Nested]:
        """The literal that a local name, or one of the module, is given once."""
        for nodes in (*map(ast.walk, place.scopes), iter(self._tree.body)):
            given = [n.value for n in nodes if isinstance(n, ast.Assign) and name in _targets(n)]
            if given:
                found, value = _literal(given[0]) if len(given) == 1 else (False, None)
                yield from (value,) if found else ()
                return

    def kinds(self, node: ast.expr, place: _Call) -> frozenset[str]:
        """What an argument must be by its form alone, or by the functions around the call."""
        given = _given_once(node.id, place) if isinstance(node, ast.Name) else None
        annotated = (
            _annotations(place).get(node.id, frozenset()) if isinstance(node, ast.Name) else frozenset()
        )
        return annotated | _cast(node if given is None else given) | self._by_form(node, place)

    def _by_form(self, node: ast.expr, place: _Call) -> frozenset[str]:
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
        functions = (n for n in bodies if isinstance(n, ast.FunctionDef) and not _is_property(n))
        return frozenset({"callable"} if any(n.name == name for n in functions) else ())


@lru_cache(maxsize=KEPT_MODULES)
def _reading(source: str) -> _Reading:
    return _Reading(module_of(source).tree)


def _calls(node: ast.AST, scopes: tuple[ast.FunctionDef, ...], owner: ast.ClassDef | None) -> Iterator[_Call]:
    """Every call with where it is."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield _Call(child, scopes, owner)
        inner = (child, *scopes) if isinstance(child, ast.FunctionDef) else scopes
        yield from _calls(child, inner, child if isinstance(child, ast.ClassDef) else owner)


def _names(node: ast.AST, without: frozenset[str] = frozenset()) -> set[str]:
    """The names in an expression whose values it may depend on, not those that it takes the size of."""
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Attribute) and node.attr in OF_A_SHAPE | without:
        return set()
    if isinstance(node, ast.Call) and (called_name(node).endswith("_like") or called_name(node) == "len"):
        return set()
    return {name for child in ast.iter_child_nodes(node) for name in _names(child, without)}


def _given(name: str, place: _Call) -> list[ast.Assign]:
    """What gives a local name its value in the functions around a call."""
    nodes = (n for s in place.scopes for n in ast.walk(s) if isinstance(n, ast.Assign))
    return [n for n in nodes if any(name in _names(target) for target in n.targets)]


def _casts(argument: ast.expr, place: _Call) -> bool:
    """Whether something makes a number of what a call passes."""
    nodes = [argument, *(s.value for s in _given(getattr(argument, "id", ""), place))]
    return any(last_name(n) in {*_CASTS, "item"} for node in nodes for n in ast.walk(node))


def _is_without_grad(statement: ast.stmt, place: _Call) -> bool:
    """Whether a statement around a call is within `with torch.no_grad():`."""
    blocks = (n for s in place.scopes for n in ast.walk(s) if isinstance(n, ast.With))
    return any(
        statement in ast.walk(block)
        for block in blocks
        if any(called_name(item.context_expr) in WITHOUT_GRAD for item in block.items)
    )


def _made_of(argument: ast.expr, place: _Call, bound: Mapping[str, ast.expr]) -> frozenset[str]:
    """The other parameters of a call whose values an argument is computed of."""
    names, left = set[str](), _names(argument)
    while left - names:
        name = (left - names).pop()
        names.add(name)
        left |= {other for statement in _given(name, place) for other in _names(statement.value)}
    if isinstance(argument, ast.Name) and not _given(argument.id, place):
        return frozenset()
    others = (
        (n, node.id) for n, node in bound.items() if isinstance(node, ast.Name) and node is not argument
    )
    return frozenset(n for n, given in others if given in names and given != getattr(argument, "id", ""))


def _learns(node: ast.AST, member: str) -> bool:
    """Whether an expression makes a module of torch's in whose source this member, or any, is a parameter."""
    function = node.func if isinstance(node, ast.Call) else None
    named = isinstance(function, ast.Attribute) and last_name(function.value) == "nn"
    layer = getattr(nn, last_name(function), None) if named and function is not None else None
    bases = layer.__mro__ if isinstance(layer, type) and issubclass(layer, nn.Module) else ()
    sources = (inspect.getsource(b) for b in bases if issubclass(b, nn.Module) and b is not nn.Module)
    return any((f"self.{member} = Parameter(" if member else "Parameter(") in source for source in sources)


def _is_property(function: ast.FunctionDef) -> bool:
    return "property" in map(name_of, function.decorator_list)


def _strings(node: ast.AST) -> set[str]:
    constants = (n.value for n in ast.walk(node) if isinstance(n, ast.Constant))
    return {value for value in constants if isinstance(value, str)}


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


def _annotations(place: _Call) -> Mapping[str, frozenset[str]]:
    """What the annotations of the functions around a call say of their parameters."""
    every = (a for s in reversed(place.scopes) for a in (*s.args.args, *s.args.kwonlyargs))
    named = ((a.arg, last_name(a.annotation)) for a in every if a.annotation is not None)
    return {name: _CASTS[kind] for name, kind in named if kind in _CASTS}


def _cast(node: ast.expr) -> frozenset[str]:
    """What a cast makes of a value."""
    return _CASTS.get(called_name(node), frozenset()) if isinstance(node, ast.Call) else frozenset()


def _given_once(name: str, place: _Call) -> ast.expr | None:
    """What the functions around a call give to a local name, if they do once: `k = int(k)`."""
    nodes = (n for s in place.scopes for n in ast.walk(s))
    given = [n.value for n in nodes if isinstance(n, ast.Assign) and name in _targets(n)]
    return given[0] if len(given) == 1 else None


def _is_rebound(name: str, holder: ast.FunctionDef, place: _Call) -> bool:
    """Whether a wrapper gives its parameter another value before the call: None stands for that one there."""
    given = (n for n in ast.walk(holder) if isinstance(n, ast.Assign) and name in _targets(n))
    return any(n.lineno < place.node.lineno for n in given)


OF_A_SHAPE = frozenset({"shape", "size", "dim", "ndim", "numel", "dtype", "device"})
"""What is read of a tensor whatever its values are."""

WITHOUT_GRAD = frozenset({"no_grad", "inference_mode"})

STOPS = frozenset({"detach", "data", "item", "float", "int", "tolist"})
"""What makes a constant of a parameter."""


def _members(node: ast.AST, member: str = "") -> set[tuple[str, str]]:
    """(attribute of self, member of it that is used or nothing) of all that values may depend on."""
    if isinstance(node, ast.Attribute) and node.attr in OF_A_SHAPE:
        return set()
    if isinstance(node, ast.Attribute) and _is_self(node, node.attr):
        return {(node.attr, member)}
    if isinstance(node, ast.Attribute | ast.Subscript):
        return _members(node.value, node.attr if isinstance(node, ast.Attribute) else member)
    if isinstance(node, ast.Call) and (called_name(node).endswith("_like") or called_name(node) == "len"):
        return set()
    return {found for child in ast.iter_child_nodes(node) for found in _members(child)}


def _asks_for_grad(node: ast.AST) -> bool:
    """Whether something in an expression is made to require grad."""
    calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
    return any(
        last_name(call.func) in {"requires_grad_", "Parameter"}
        or any(k.arg == "requires_grad" and getattr(k.value, "value", False) for k in call.keywords)
        for call in calls
    )


def _is_buffer(node: ast.expr, owner: ast.ClassDef | None) -> bool:
    """Whether an expression is an attribute that `__init__` registers as a buffer."""
    initial, name = _initializer(owner), getattr(node, "attr", "")
    return initial is not None and any(
        isinstance(n, ast.Call)
        and called_name(n) == "register_buffer"
        and [getattr(a, "value", "") for a in n.args[:1]] == [name]
        for n in ast.walk(initial)
    )


def _initializer(owner: ast.ClassDef | None) -> ast.FunctionDef | None:
    methods = owner.body if owner is not None else []
    return next((m for m in methods if isinstance(m, ast.FunctionDef) and m.name == "__init__"), None)


def _gives_to_self(node: ast.AST, name: str) -> TypeGuard[ast.Assign]:
    """Whether a statement is `self.name = ...`."""
    return isinstance(node, ast.Assign) and any(_is_self(t, name) for t in node.targets)


def _is_self(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == name and getattr(node.value, "id", "") == "self"
