"""What a module's names are and how its targets are called, as far as the source alone decides that.

A class whose forward is inherited, a decorated function, a name defined twice: there is no signature then,
and binding decides with live objects.

What a `*args` parameter holds: what a tuple is unpacked to, sizes with a star among them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gradverify.model import Parameter
from gradverify.source.module import UNREADABLE, Module, imports_of, module_of, seen_from
from gradverify.source.tree import (
    INNER,
    Def,
    assigned,
    bare_name,
    defaults_of,
    each,
    integer,
    is_none,
    last_name,
    name_of,
    parameters_of,
)

_KEEPS_SIGNATURE = {"staticmethod", "custom_fwd", "no_grad", "enable_grad", "ignore"}
"""Decorators under which `forward` still takes the parameters that its source shows."""
_TAKES_CTX = {"Function", "InplaceFunction", "NestedIOFunction", "Module"}
"""Bases whose `forward` has a first parameter that callers do not pass."""
_DYNAMIC = {"globals", "vars", "exec", "setattr"}
"""Calls at the top of a module that may define any name."""
_NOT_A_TENSOR = {"int", "tuple", "Tuple", "Size", "list", "List", "Sequence", "Iterable"}
"""Annotations for which a bare list is no tensor shape but the value itself."""
_NEUTRAL = {"None", "Optional", "Union", "Annotated"}


@dataclass(frozen=True)
class Signature:
    """How a target is called."""

    label: str
    """`Linear.forward` for a class, the function's own name else."""
    parameters: tuple[Parameter, ...]

    def __str__(self) -> str:
        """Return `Linear.forward(input, weight, bias)`."""
        return f"{self.label}({', '.join('*' * p.variadic + p.name for p in self.parameters)})"


@dataclass(frozen=True)
class ModuleNames:
    """The names at the top of one module."""

    names: frozenset[str]
    definitions: frozenset[str]
    """The classes and functions among them."""
    signatures: Mapping[str, Signature]
    dynamic: bool
    """Star imports, `__getattr__` or `globals()`: there may be more names than the source shows."""


def read_names(source: bytes) -> ModuleNames | None:
    """Return what a module defines, or None where its source does not parse."""
    module = module_of(source)
    if module.error is not None:
        return None
    nodes = [*seen_from(module.tree, 0, INNER)]  # what runs at import
    imported = [one.bound for one in imports_of(nodes)]
    seen, dynamic = [*imported], "*" in imported
    definitions: dict[str, ast.ClassDef | Def] = {}
    for node in nodes:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                seen.append(name)
                definitions[name] = node
            case ast.Name(id=name, ctx=ast.Store()):
                seen.append(name)
            case ast.Call(func=ast.Name(id=name)):
                dynamic = dynamic or name in _DYNAMIC
            case ast.Global(names=names):
                seen += names
            case _:
                pass
    signatures = {
        name: signature
        for name, node in definitions.items()
        if seen.count(name) == 1 and (signature := _signature(node, module)) is not None
    }
    dynamic = dynamic or "__getattr__" in definitions
    return ModuleNames(frozenset(seen), frozenset(definitions), signatures, dynamic)


def _signature(node: ast.ClassDef | Def, module: Module) -> Signature | None:
    if isinstance(node, Def):
        return None if node.decorator_list else _of_arguments(node.name, node.args)
    methods = [item for item in node.body if isinstance(item, Def)]
    named = {method.name: method for method in methods}
    forward, context = named.get("forward"), named.get("setup_context")
    if (
        node.decorator_list
        or node.keywords
        or forward is None
        or sum(method.name == "forward" for method in methods) > 1
        or not {bare_name(decorator) for decorator in forward.decorator_list} <= _KEEPS_SIGNATURE
    ):
        return None
    leading = 0 if context is not None else _leading(node, forward)
    if leading is None:
        return None
    parts = parts_of(node.name, forward, context, module)
    return _of_arguments(f"{node.name}.forward", forward.args, leading, parts)


def _leading(node: ast.ClassDef, forward: Def) -> int | None:
    """Return how many first parameters are not inputs (`ctx`, `self`), None where a base decides."""
    first = next(iter(parameters_of(forward)), "")
    by_base = bool(node.bases) and all(bare_name(base) in _TAKES_CTX for base in node.bases)
    return 1 if first in {"ctx", "self", "context"} or (first and by_base) else None


def _of_arguments(
    label: str, arguments: ast.arguments, leading: int = 0, parts: tuple[Parameter, ...] = ()
) -> Signature | None:
    """None where `**kwargs` are taken; the `leading` parameters are left out."""
    by_name = arguments.kwonlyargs
    parameters = [
        Parameter(a.arg, default is not None, _annotation(a), keyword_only=a in by_name)
        for a, default in defaults_of(arguments)
    ]
    if arguments.vararg:
        annotation = _annotation(arguments.vararg)
        variadic = Parameter(arguments.vararg.arg, annotation=annotation, variadic=True, parts=parts)
        parameters.insert(len(parameters) - len(by_name), variadic)
    return None if arguments.kwarg else Signature(label, tuple(parameters[leading:]))


def _annotation(argument: ast.arg) -> str:
    return ast.unparse(argument.annotation) if argument.annotation else ""


def is_not_a_tensor(annotation: str) -> bool:
    """Whether an annotation says int, tuple, list or Size, so that a bare list cannot be a tensor's shape."""
    try:
        heads = set(_heads(ast.parse(annotation.strip(), mode="eval").body)) - _NEUTRAL
    except UNREADABLE:
        return False
    return bool(heads) and heads <= _NOT_A_TENSOR


def _heads(node: ast.expr) -> list[str]:
    """Return the outermost names of an annotation: `Optional[Tuple[int, int]]` gives `None` and `Tuple`."""
    match node:
        case ast.Constant(value=str() as text):
            return _heads(ast.parse(text, mode="eval").body)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _heads(left) + _heads(right)
        case ast.Subscript(value=value, slice=inner):
            members = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            told = {"Annotated": members[:1], "Optional": members, "Union": members}
            return [head for one in told.get(last_name(value), [value]) for head in _heads(one)]
        case _:
            return ["None" if is_none(node) else last_name(node) or "?"]


@dataclass(frozen=True)
class _Parts:
    """The names of what a `*args` parameter holds."""

    names: tuple[str, ...]
    rest: str = ""
    """The name of what is left of it, as many as there are; empty where nothing is."""


def parts_of(name: str, forward: Def, setup_context: Def | None, module: Module) -> tuple[Parameter, ...]:
    """What the `*args` of a Function's forward holds, by the author's names; empty where none are given.

    They stand where forward unpacks it or reads it by number, where `setup_context` unpacks its inputs, or
    where the module applies the Function, which is called `name`.
    """
    if forward.args.vararg is None:
        return ()
    variadic = forward.args.vararg.arg
    before = len(parameters_of(forward)) - (setup_context is None)
    found = _unpacked(variadic, forward)
    if found is None and setup_context is not None and len(parameters_of(setup_context)) > 1:
        found = _after(before, _unpacked(parameters_of(setup_context)[1], setup_context))
    found = found or _after(before, _applied(name, module.tree)) or _numbered(variadic, forward)
    if found is None or not found.names:
        return ()
    taken = {*parameters_of(forward), *(a.arg for a in forward.args.kwonlyargs), variadic}
    *names, rest = _unique((*found.names, found.rest), variadic, taken)
    annotation = _annotation(forward.args.vararg)
    several = (Parameter(rest, annotation=annotation, variadic=True),) if found.rest else ()
    return (*(Parameter(n, annotation=annotation) for n in names), *several)


def _unpacked(packed: str, body: Def) -> _Parts | None:
    """The names that a tuple is unpacked to; None where it is to none, or to several sets of them."""
    several: set[_Parts] = set()
    for node in each(ast.Assign, body):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=[*before, last])], value=ast.Name(id=name)) if (
                name == packed
            ):
                if any(isinstance(e, ast.Starred) for e in before):
                    return None
                rest = last.value if isinstance(last, ast.Starred) else None
                entries = before if rest else [*before, last]
                several.add(_Parts(tuple(map(name_of, entries)), name_of(rest)))
            case _:
                pass
    return several.pop() if len(several) == 1 else None


def _applied(function: str, tree: ast.Module) -> _Parts | None:
    """What the module's calls of `function.apply` pass, if all pass as many, by the names in the first."""
    given = (node for node in tree.body if isinstance(node, ast.Assign) and applied(node.value) == function)
    aliases = {name_of(target) for node in given for target in node.targets} - {""}
    calls = [c for c in each(ast.Call, tree) if applied(c.func) == function or name_of(c.func) in aliases]
    unread = any(c.keywords or any(isinstance(a, ast.Starred) for a in c.args) for c in calls)
    if unread or len({len(c.args) for c in calls}) != 1:
        return None
    return _Parts(tuple(map(last_name, calls[0].args)))


def _numbered(packed: str, body: Def) -> _Parts | None:
    """The names that entries are given by number, if forward reads the tuple in no other way."""
    reads = [n for n in each(ast.Name, body) if n.id == packed and isinstance(n.ctx, ast.Load)]
    entries = [n for n in each(ast.Subscript, body) if name_of(n.value) == packed]
    numbers = {id(n): k for n in entries if (k := integer(n.slice)) is not None}
    names = dict.fromkeys(numbers.values(), "")
    for given, value in filter(None, map(assigned, each(ast.Assign, body))):
        if id(value) in numbers:
            names[numbers[id(value)]] = given
    whole = len(numbers) == len(reads) and sorted(names) == [*range(len(names))]
    return _Parts(tuple(names[k] for k in sorted(names))) if names and whole else None


def applied(node: ast.expr) -> str:
    """The `f` of `f.apply`, empty for anything else."""
    return last_name(node.value) if isinstance(node, ast.Attribute) and node.attr == "apply" else ""


def _after(count: int, found: _Parts | None) -> _Parts | None:
    return None if found is None else _Parts(found.names[count:], found.rest)


def _unique(names: Sequence[str], variadic: str, taken: set[str]) -> Iterator[str]:
    """The names, and `args_1` for one that is none or is there already."""
    seen = set(taken)
    for place, name in enumerate(names):
        own = name if name.strip("_") and name not in seen else f"{variadic}_{place}"
        seen.add(own)
        yield own
