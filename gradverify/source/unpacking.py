"""What a tuple is unpacked to: sizes with a star among them, and what a `*args` parameter holds."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradverify.model import Parameter
from gradverify.source.module import Module
from gradverify.source.tree import each, integer, last_name, parameters_of


@dataclass(frozen=True)
class _Parts:
    """The names of what a `*args` parameter holds."""

    names: tuple[str, ...]
    rest: str = ""
    """The name of what is left of it, as many as there are; empty where nothing is."""


_Def = ast.FunctionDef | ast.AsyncFunctionDef


def parts_of(name: str, forward: _Def, setup_context: _Def | None, module: Module) -> tuple[Parameter, ...]:
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
    annotation = ast.unparse(forward.args.vararg.annotation) if forward.args.vararg.annotation else ""
    several = (Parameter(rest, annotation=annotation, variadic=True),) if found.rest else ()
    return (*(Parameter(n, annotation=annotation) for n in names), *several)


def _unpacked(packed: str, body: _Def) -> _Parts | None:
    """The names that a tuple is unpacked to; None where it is to none, or to several sets of them."""
    several: set[_Parts] = set()
    for node in each(ast.Assign, body):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=[*before, last])], value=ast.Name(id=name)) if (
                name == packed
            ):
                if any(isinstance(e, ast.Starred) for e in before):
                    return None
                rest = _name(last.value) if isinstance(last, ast.Starred) else ""
                entries = before if isinstance(last, ast.Starred) else [*before, last]
                several.add(_Parts(tuple(map(_name, entries)), rest))
            case _:
                pass
    return several.pop() if len(several) == 1 else None


def _applied(function: str, tree: ast.Module) -> _Parts | None:
    """What the module's calls of `function.apply` pass, if all pass as many, by the names in the first."""
    given = (node for node in tree.body if isinstance(node, ast.Assign) and applied(node.value) == function)
    aliases = {t.id for node in given for t in node.targets if isinstance(t, ast.Name)}
    calls = [c for c in each(ast.Call, tree) if applied(c.func) == function or _name(c.func) in aliases]
    unread = any(c.keywords or any(isinstance(a, ast.Starred) for a in c.args) for c in calls)
    if unread or len({len(c.args) for c in calls}) != 1:
        return None
    return _Parts(tuple(map(last_name, calls[0].args)))


def _numbered(packed: str, body: _Def) -> _Parts | None:
    """The names that entries are given by number, if forward reads the tuple in no other way."""
    reads = [n for n in each(ast.Name, body) if n.id == packed and isinstance(n.ctx, ast.Load)]
    entries = [n for n in each(ast.Subscript, body) if _name(n.value) == packed]
    numbers = {id(n): k for n in entries if (k := integer(n.slice)) is not None}
    names = dict.fromkeys(numbers.values(), "")
    for node in each(ast.Assign, body):
        match node:
            case ast.Assign(targets=[ast.Name(id=given)], value=value) if id(value) in numbers:
                names[numbers[id(value)]] = given
            case _:
                pass
    whole = len(numbers) == len(reads) and sorted(names) == [*range(len(names))]
    return _Parts(tuple(names[k] for k in sorted(names))) if names and whole else None


def applied(node: ast.expr) -> str:
    """The `f` of `f.apply`, empty for anything else."""
    return last_name(node.value) if isinstance(node, ast.Attribute) and node.attr == "apply" else ""


def _after(count: int, found: _Parts | None) -> _Parts | None:
    return None if found is None else _Parts(found.names[count:], found.rest)


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _unique(names: Sequence[str], variadic: str, taken: set[str]) -> Iterator[str]:
    """The names, and `args_1` for one that is none or is there already."""
    seen = set(taken)
    for place, name in enumerate(names):
        own = name if name.strip("_") and name not in seen else f"{variadic}_{place}"
        seen.add(own)
        yield own
