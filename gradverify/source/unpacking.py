"""What a tuple is unpacked to: sizes with a star among them, and what a `*args` parameter holds."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gradverify.model import Parameter
from gradverify.source.tree import last_name, parameters_of


def paired(targets: Sequence[ast.expr], values: Sequence[ast.expr]) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Which target is given which value; of `b, t, v = *k.shape, m` the first two are given `k.shape`.

    Nothing where that cannot be told: stars on both sides, or several of them.
    """
    stars = [k for k, v in enumerate(values) if isinstance(v, ast.Starred)]
    if any(isinstance(t, ast.Starred) for t in targets) or len(stars) > 1:
        return
    if not stars:
        yield from zip(targets, values, strict=True) if len(targets) == len(values) else ()
        return
    (start,), more = stars, len(targets) - len(values) + 1
    if more >= 0:
        held = values[start]
        inner = held.value if isinstance(held, ast.Starred) else held
        yield from zip(targets[:start], values[:start], strict=True)
        yield ast.Tuple(list(targets[start : start + more]), ast.Store()), inner
        yield from zip(targets[start + more :], values[start + 1 :], strict=True)


@dataclass(frozen=True)
class _Parts:
    """The names of what a `*args` parameter holds."""

    names: tuple[str, ...]
    rest: str = ""
    """The name of what is left of it, as many as there are; empty where nothing is."""


def parts_of(
    name: str, forward: ast.FunctionDef, setup_context: ast.FunctionDef | None, tree: ast.Module | None
) -> tuple[Parameter, ...]:
    """What the `*args` of a Function's forward holds, by the author's names; empty where none are given.

    They stand where forward unpacks it or reads it by number, where `setup_context` unpacks its inputs, or
    where the module `tree` applies the Function, which is called `name`.
    """
    if forward.args.vararg is None:
        return ()
    variadic = forward.args.vararg.arg
    before = len(parameters_of(forward)) - (setup_context is None)
    found = _unpacked(variadic, forward)
    if found is None and setup_context is not None and len(parameters_of(setup_context)) > 1:
        found = _after(before, _unpacked(parameters_of(setup_context)[1], setup_context))
    if found is None and tree is not None:
        found = _after(before, _applied(name, tree))
    found = found or _numbered(variadic, forward)
    if found is None or not found.names:
        return ()
    taken = {*parameters_of(forward), *(a.arg for a in forward.args.kwonlyargs), variadic}
    *names, rest = _unique((*found.names, found.rest), variadic, taken)
    annotation = ast.unparse(forward.args.vararg.annotation) if forward.args.vararg.annotation else ""
    several = (Parameter(rest, annotation=annotation, variadic=True),) if found.rest else ()
    return (*(Parameter(n, annotation=annotation) for n in names), *several)


def _unpacked(packed: str, body: ast.FunctionDef) -> _Parts | None:
    """The names that a tuple is unpacked to; None where it is to none, or to several sets of them."""
    several: dict[_Parts, None] = {}
    for node in ast.walk(body):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=entries)], value=ast.Name(id=name)) if name == packed:
                *before, last = entries
                rest = last.value if isinstance(last, ast.Starred) else None
                names = tuple(map(_name, before if rest is not None else entries))
                if any(isinstance(e, ast.Starred) for e in before):
                    return None
                several[_Parts(names, _name(rest) if rest is not None else "")] = None
            case _:
                pass
    return next(iter(several)) if len(several) == 1 else None


def _applied(function: str, tree: ast.Module) -> _Parts | None:
    """What the module's calls of `function.apply` pass, if all pass as many, by the names in the first."""
    aliases = {
        t.id
        for node in tree.body
        if isinstance(node, ast.Assign) and applied(node.value) == function
        for t in node.targets
        if isinstance(t, ast.Name)
    }
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and (applied(node.func) == function or _name(node.func) in aliases)
    ]
    unread = any(c.keywords or any(isinstance(a, ast.Starred) for a in c.args) for c in calls)
    if not calls or unread or len({len(c.args) for c in calls}) > 1:
        return None
    return _Parts(
        tuple(last_name(a) if isinstance(a, ast.Name | ast.Attribute) else "" for a in calls[0].args)
    )


def _numbered(packed: str, body: ast.FunctionDef) -> _Parts | None:
    """The names that entries are given by number, if forward reads the tuple in no other way."""
    names: dict[int, str] = {}
    read = 0
    for node in ast.walk(body):
        match node:
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=int() as k)) if (
                name == packed
            ):
                names.setdefault(k, "")
                read += 1
            case ast.Name(id=name, ctx=ast.Load()) if name == packed:
                read -= 1
            case _:
                pass
    for node in ast.walk(body):
        match node:
            case ast.Assign(
                targets=[ast.Name(id=given)],
                value=ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=int() as k)),
            ) if name == packed:
                names[k] = given
            case _:
                pass
    whole = read == 0 and sorted(names) == list(range(len(names)))
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
