"""What backward returns for each parameter by its source: a gradient, None, or None where one is intended."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence

from gradverify.source import Method, blocks, integer, is_none, returned
from gradverify.source.returned import is_always_none
from gradverify.verifier.infer.facts import Facts

ASKED = "needs_input_grad"


def note_gradients(facts: Mapping[str, Facts], backward: Method) -> None:
    """Note of every parameter whether backward returns a gradient for it, and whether one is intended."""
    names = list(facts)
    for place in _asked(backward, len(names)):
        facts[names[place]].intended = True
    paths = [_values(path.node.value, path.values, len(names)) for path in returned(backward)]
    known = [path for path in paths if path is not None]
    if not paths or len(known) < len(paths):
        return
    # Who asks for other gradients, and not for this one, leaves this one out on purpose.
    asks = any(isinstance(n, ast.Attribute) and n.attr == ASKED for n in backward.nodes)
    nothing = _nothing(backward, known)
    initialised = set() if asks else _initialised(backward, known, nothing)
    for place, name in enumerate(names):
        given = [path[place] for path in known if place < len(path)]
        if given:
            facts[name].gradient = not all(_name(g) in nothing or is_always_none(g, backward) for g in given)
            facts[name].intended |= any(_name(g) in initialised for g in given)


def _values(
    node: ast.expr | None, values: Sequence[ast.expr] | None, count: int
) -> Sequence[ast.expr] | None:
    """What a path returns, by parameter; of one parameter it may be any expression."""
    if values is None and count == 1 and node is not None:
        return [node]
    return None if any(isinstance(e, ast.Starred) for e in getattr(node, "elts", ())) else values


def _asked(backward: Method, count: int) -> set[int]:
    """Positions of `needs_input_grad` that backward reads for more than to refuse a gradient."""
    refusing = {id(n) for test in _refusals(backward) for n in ast.walk(test)}
    whole = {ASKED} | {
        target.id
        for n in backward.nodes
        if isinstance(n, ast.Assign) and _last(n.value) == ASKED
        for target in n.targets
        if isinstance(target, ast.Name)
    }
    single: dict[str, int] = {}
    found: set[int | None] = set()
    for node in backward.nodes:
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=entries)], value=value) if _last(value) in whole:
                single |= {e.id: k for k, e in enumerate(entries) if isinstance(e, ast.Name)}
            case ast.Name(id=name, ctx=ast.Load()) if name in single and id(node) not in refusing:
                found.add(single[name])
            case ast.Subscript(value=value, slice=index) if _last(value) in whole:
                found.add(None if id(node) in refusing else integer(index))
            case _:
                pass
    return {k % count for k in found if k is not None and -count <= k < count}


def _refusals(backward: Method) -> Iterator[ast.expr]:
    """Conditions under which backward raises, warns or does nothing else."""
    for node in backward.nodes:
        match node:
            case ast.Assert(test=test):
                yield test
            case ast.If(test=test, body=body, orelse=[]):
                if all(isinstance(s, ast.Raise | ast.Expr | ast.Pass) for s in body):
                    yield test
            case _:
                pass


def _nothing(backward: Method, paths: Sequence[Sequence[ast.expr]]) -> set[str]:
    """Names that are returned and only ever given None, alone or as one of several at once."""
    given = [_given_none(n) for n in backward.nodes if isinstance(n, ast.Assign)]
    return {
        name
        for name in {_name(value) for path in paths for value in path} - {""}
        if 0 < len(backward.bindings.get(name, [])) == sum(name in one for one in given)
    }


def _initialised(backward: Method, paths: Sequence[Sequence[ast.expr]], nothing: Collection[str]) -> set[str]:
    """Names that stay None, and are given it together with others that backward computes and returns."""
    returned_names = {_name(value) for path in paths for value in path}
    found: set[str] = set()
    for block in blocks(backward.node.body):
        run: set[str] = set()
        for statement in (*block, ast.Pass()):
            given = _given_none(statement)
            if not given and (run & returned_names) - set(nothing):
                found |= run & set(nothing)
            run = run | given if given else set()
    return found


def _given_none(statement: ast.AST) -> set[str]:
    """Names of `a = b = None` and `a, b = None, None`; empty for every other statement."""
    match statement:
        case ast.Assign(targets=targets, value=ast.Constant(value=None)):
            names: Collection[ast.expr] = targets
        case ast.Assign(targets=[ast.Tuple(elts=entries)], value=ast.Tuple(elts=values)) if all(
            map(is_none, values)
        ):
            names = entries
        case _:
            return set()
    return {_name(n) for n in names} - {""}


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else _name(node)


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""
