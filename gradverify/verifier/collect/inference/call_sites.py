"""What a package itself passes to a Function: literals, defaults of the wrapper, attributes of `self`."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from gradverify.model import Nested
from gradverify.verifier.collect.inference.parsing import KEPT_TREES, tree_of

_Scopes = tuple[ast.FunctionDef, ...]

FURTHEST = 2
"""Wrappers that a value is followed through: from the layer to the function that calls `apply`."""

MOST_LITERALS = 4
"""Values of one parameter that are kept: those of the nearest calls."""


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
    """What it must be by the form of what is passed: `callable flag sequence tensor`."""


@dataclass(frozen=True)
class _Place:
    """Where an expression stands."""

    tree: ast.Module
    scopes: _Scopes = ()
    """The functions around it, innermost first."""
    owner: ast.ClassDef | None = None


@dataclass(frozen=True)
class _Call:
    node: ast.Call
    place: _Place


def call_sites(
    source: str,
    function: str,
    names: Sequence[str],
    direct: frozenset[str] = frozenset(),
    others: Sequence[ast.Module] = (),
) -> dict[str, Passed]:
    """Read every `function.apply(...)` of a module's source; empty where the source cannot be parsed.

    `direct` are expressions that are called as they stand: `mul`, `torch.ops.mylib.mul`. `others` are
    further files of the same package.
    """
    try:
        tree = tree_of(source)
    except (SyntaxError, ValueError):
        return {}
    reading = _Reading((tree, *others))
    literals: dict[str, list[Nested]] = {name: [] for name in names}
    trained: set[str] = set()
    kinds: dict[str, set[str]] = {name: set() for name in names}
    given: set[str] = set()
    for call in reading.calls_of(function, direct):
        for name, argument in _bound(call.node, names):
            given.add(name)
            kinds[name] |= reading.kinds(argument, call.place)
            for value in reading.values(argument, call.place):
                if not _is_known(value, literals[name]) and len(literals[name]) < MOST_LITERALS:
                    literals[name].append(value)
            if call.place.owner is not None and _is_parameter(argument, call.place.owner):
                trained.add(name)
    return {n: Passed(tuple(literals[n]), n in trained, n in given, frozenset(kinds[n])) for n in names}


def _is_known(value: Nested, literals: Sequence[Nested]) -> bool:
    """Whether it is there already: `True` is not 1."""
    return any(value == other and type(value) is type(other) for other in literals)


def _bound(call: ast.Call, names: Sequence[str]) -> Iterator[tuple[str, ast.expr]]:
    """What a call passes, by the name of the parameter, up to the first `*args`."""
    for name, argument in zip(names, call.args, strict=False):
        if isinstance(argument, ast.Starred):
            break
        yield name, argument
    yield from ((k.arg, k.value) for k in call.keywords if k.arg in names)  # type: ignore[misc]


class _Reading:
    """Files of one package; the first is that of the target."""

    def __init__(self, trees: Sequence[ast.Module]) -> None:
        self._trees = tuple(trees)
        self._home = trees[0]

    def calls_of(self, function: str, direct: frozenset[str]) -> Iterator[_Call]:
        """Calls of `function.apply`, under any name that the target's file or their own gives to it."""
        of_home = _aliases(self._home).get(function, frozenset())
        last = {function, *(expression.rpartition(".")[2] for expression in direct)}
        for tree in self._trees:
            taken = of_home if tree is self._home else of_home & _imported(tree)
            known = taken | _aliases(tree).get(function, frozenset())
            for call in _called(tree, last | known):
                named = bool(direct) and ast.unparse(call.node.func) in direct
                if named or _applies(call.node, function, known):
                    yield call

    def values(self, node: ast.expr, place: _Place, depth: int = 0) -> Iterator[Nested]:
        """The values that the source gives for an argument."""
        found, value = _literal(node)
        if found:
            yield value
        elif isinstance(node, ast.Name):
            holder = next((s for s in place.scopes if node.id in _parameters(s)), None)
            if holder is not None:
                yield from self._of_parameter(node.id, holder, place, depth)
            else:
                yield from _assigned(node.id, place)
        elif isinstance(node, ast.Attribute) and _is_self(node, node.attr):
            yield from self._attribute(node.attr, place, depth)

    def _of_parameter(
        self, name: str, holder: ast.FunctionDef, place: _Place, depth: int
    ) -> Iterator[Nested]:
        """The default of a wrapper's parameter, then what is passed for it."""
        default = _defaults(holder).get(name)
        found, value = _literal(default) if default is not None else (False, None)
        if found:
            yield value
        if depth == FURTHEST:
            return
        called, order = holder.name, [a.arg for a in (*holder.args.posonlyargs, *holder.args.args)]
        if order[:1] in (["self"], ["cls"]):
            order = order[1:]
            if called == "__init__" and place.owner is not None:
                called = place.owner.name
            elif called in {"__init__", "forward", "apply", "__call__"}:
                return
        for call in (call for tree in self._trees for call in _called(tree, {called})):
            if _last_name(call.node.func) == called and holder not in call.place.scopes:
                for passed, argument in _bound(call.node, order):
                    if passed == name:
                        yield from self.values(argument, call.place, depth + 1)

    def _attribute(self, name: str, place: _Place, depth: int) -> Iterator[Nested]:
        """What `__init__` gives an attribute: a literal, or what its own parameter gets."""
        initial = _initializer(place.owner)
        if initial is None:
            return
        for node in ast.walk(initial):
            if isinstance(node, ast.Assign) and any(_is_self(t, name) for t in node.targets):
                yield from self.values(node.value, _Place(place.tree, (initial,), place.owner), depth)
                return

    def kinds(self, node: ast.expr, place: _Place) -> set[str]:
        """What an argument must be by its form alone."""
        match node:
            case ast.Lambda():
                return {"callable"}
            case ast.UnaryOp(op=ast.Not()) | ast.Compare():
                return {"flag"}
            case ast.Attribute(attr="training"):
                return {"flag"}
            case ast.Name(id=name) if _is_function(name, place):
                return {"callable"}
            case ast.Attribute(attr=name) if place.owner is not None and _is_self(node, name):
                methods = {m.name for m in place.owner.body if isinstance(m, ast.FunctionDef)}
                return {"callable"} if name in methods else set()
            case _:
                return set()


def _is_function(name: str, place: _Place) -> bool:
    """Whether a name is that of a function defined in the file or around the call, and no parameter."""
    if any(name in _parameters(s) for s in place.scopes):
        return False
    bodies = [*place.tree.body, *(n for s in place.scopes for n in s.body)]
    return any(isinstance(n, ast.FunctionDef) and n.name == name for n in bodies)


@lru_cache(maxsize=KEPT_TREES)
def _aliases(tree: ast.Module) -> Mapping[str, frozenset[str]]:
    """Module-level names of `function.apply`, by the function."""
    found: dict[str, set[str]] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and (function := _applied(node.value)):
            names = (target.id for target in node.targets if isinstance(target, ast.Name))
            found.setdefault(function, set()).update(names)
    return {function: frozenset(names) for function, names in found.items()}


def _called(tree: ast.Module, names: Collection[str]) -> Iterator[_Call]:
    """Calls of what is called so, or of its `apply`, in the order of the file."""
    calls = _calls_by_name(tree)
    found = {number: call for name in names for number, call in calls.get(name, {}).items()}
    yield from (found[number] for number in sorted(found))


@lru_cache(maxsize=KEPT_TREES)
def _calls_by_name(tree: ast.Module) -> Mapping[str, Mapping[int, _Call]]:
    """The calls of a file, numbered, by the last name of what is called; of `f.apply` under `f`, too."""
    found: dict[str, dict[int, _Call]] = {}
    for number, call in enumerate(_calls(tree, _Place(tree))):
        for name in {_last_name(call[0].func), _applied(call[0].func)}:
            found.setdefault(name, {})[number] = _Call(*call)
    return found


@lru_cache(maxsize=KEPT_TREES)
def _imported(tree: ast.Module) -> set[str]:
    """Names that a file takes from others under the same name."""
    return {
        a.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for a in node.names
        if a.asname in {None, a.name}
    }


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _applied(node: ast.expr) -> str:
    """The `f` of `f.apply`, empty for anything else."""
    return _last_name(node.value) if isinstance(node, ast.Attribute) and node.attr == "apply" else ""


def _applies(call: ast.Call, function: str, aliases: Collection[str]) -> bool:
    is_alias = isinstance(call.func, ast.Name) and call.func.id in aliases
    return is_alias or (bool(function) and _applied(call.func) == function)


def _calls(node: ast.AST, place: _Place) -> Iterator[tuple[ast.Call, _Place]]:
    """Every call with where it stands."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield child, place
        scopes = (child, *place.scopes) if isinstance(child, ast.FunctionDef) else place.scopes
        owner = child if isinstance(child, ast.ClassDef) else place.owner
        inside = scopes is not place.scopes or owner is not place.owner
        yield from _calls(child, _Place(place.tree, scopes, owner) if inside else place)


def _assigned(name: str, place: _Place) -> Iterator[Nested]:
    """The literal that a local name, or one of the file, is given once."""
    of_file: Iterator[ast.AST] = iter(place.tree.body)
    for nodes in (*map(ast.walk, place.scopes), of_file):
        given = [n.value for n in nodes if isinstance(n, ast.Assign) and _gives(n, name)]
        if given:
            found, value = _literal(given[0]) if len(given) == 1 else (False, None)
            if found:
                yield value
            return


def _gives(node: ast.Assign, name: str) -> bool:
    return any(isinstance(t, ast.Name) and t.id == name for t in node.targets)


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
