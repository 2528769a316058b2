"""What backward returns for each parameter by its source: a gradient, None, or None where one is intended."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence

from gradverify.lint.walking import blocks, own_nodes_of
from gradverify.verifier.collect.inference.facts import Facts
from gradverify.verifier.collect.inference.uses import called_name, is_none

ASKED = "needs_input_grad"

Row = list[ast.expr]
"""What one `return` gives, by parameter."""


def note_gradients(facts: Mapping[str, Facts], names: Sequence[str], backward: ast.FunctionDef) -> None:
    """Note of every parameter whether backward returns a gradient for it, and whether one is intended."""
    asked = _asked(backward, len(names))
    for position in asked:
        facts[names[position]].intended = True
    nodes = own_nodes_of(backward.body)
    rows = [_elements(n.value) for n in nodes if isinstance(n, ast.Return) and n.value is not None]
    known = [row for row in rows if row is not None]
    if not rows or len(known) < len(rows):
        return
    nothing = _always_none(backward)
    # Who asks for other gradients, and not for this one, leaves this one out on purpose.
    asks = any(isinstance(n, ast.Attribute) and n.attr == ASKED for n in ast.walk(backward))
    initialised = set() if asks else _initialised(backward, nothing, known)
    for position, name in enumerate(names):
        given = [row[position] for row in known if position < len(row)]
        if given:
            facts[name].gradient = not all(is_none(g) or _named(g) in nothing for g in given)
            facts[name].intended |= any(_named(g) in initialised for g in given)


def _asked(backward: ast.FunctionDef, count: int) -> set[int]:
    """Positions of `needs_input_grad` that backward reads for more than to refuse a gradient."""
    refusing = {id(n) for test in _refusals(backward) for n in ast.walk(test)}
    whole, single = set[str](), dict[str, int]()
    for node in own_nodes_of(backward.body):
        if isinstance(node, ast.Assign) and _is_asked(node.value, whole):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    whole.add(target.id)
                elif isinstance(target, ast.Tuple | ast.List):
                    single |= _unpacked(target, count)
    found = set()
    for node in own_nodes_of(backward.body):
        if id(node) in refusing:
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in single:
            found.add(single[node.id])
        elif isinstance(node, ast.Subscript) and _is_asked(node.value, whole):
            found |= _places(node.slice, count)
    return found


def _is_asked(node: ast.expr, names: Collection[str]) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == ASKED) or _named(node) in names


def _unpacked(target: ast.Tuple | ast.List, count: int) -> dict[str, int]:
    """Names by position, counted from the end behind a starred one."""
    starred = next((k for k, e in enumerate(target.elts) if isinstance(e, ast.Starred)), None)
    behind = count - len(target.elts)
    return {
        entry.id: place if starred is None or place < starred else place + behind
        for place, entry in enumerate(target.elts)
        if isinstance(entry, ast.Name) and 0 <= place + (0 if starred is None else behind) < count
    }


def _places(index: ast.expr, count: int) -> set[int]:
    try:
        place = ast.literal_eval(index)
    except (ValueError, TypeError):
        return set()
    return {place % count} if isinstance(place, int) and -count <= place < count else set()


def _refusals(backward: ast.FunctionDef) -> Iterator[ast.expr]:
    """Conditions under which backward raises, warns or does nothing else."""
    for node in own_nodes_of(backward.body):
        match node:
            case ast.Assert(test=test):
                yield test
            case ast.If(test=test, body=body, orelse=[]) if not any(map(_computes, body)):
                yield test
            case _:
                pass


def _computes(statement: ast.stmt) -> bool:
    return not isinstance(statement, ast.Raise | ast.Expr | ast.Pass)


def _initialised(backward: ast.FunctionDef, nothing: Collection[str], rows: Sequence[Row]) -> set[str]:
    """Names that stay None, and are given it together with others that backward computes and returns."""
    returned = {_named(entry) for row in rows for entry in row}
    found: set[str] = set()
    for block in blocks(backward.body):
        run: set[str] = set()
        for statement in (*block, ast.Pass()):
            given = _given_none(statement)
            if given:
                run |= given
                continue
            if (run & returned) - set(nothing):
                found |= run & set(nothing)
            run = set()
    return found


def _given_none(statement: ast.stmt) -> set[str]:
    """Names of `a = b = None` and `a, b = None, None`; empty for every other statement."""
    if not isinstance(statement, ast.Assign):
        return set()
    given: dict[str, list[bool]] = {}
    for target in statement.targets:
        _note_assigned(target, statement.value, given)
    return set(given) if all(all(nones) for nones in given.values()) else set()


def _named(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _always_none(definition: ast.FunctionDef) -> set[str]:
    """Local names that are only ever given None."""
    given: dict[str, list[bool]] = {}
    for node in ast.walk(definition):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                _note_assigned(target, node.value, given)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            given.setdefault(node.id, [])
    return {name for name, nones in given.items() if nones and all(nones)}


def _note_assigned(target: ast.expr, value: ast.expr, given: dict[str, list[bool]]) -> None:
    if isinstance(target, ast.Name):
        given.setdefault(target.id, []).append(is_none(value))
    elif isinstance(target, ast.Tuple | ast.List):
        several = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts) else None
        for place, entry in enumerate(target.elts):
            if several is not None:
                _note_assigned(entry, several[place], given)
            elif isinstance(entry, ast.Name):
                given.setdefault(entry.id, []).append(False)


def _elements(value: ast.expr) -> Row | None:
    """The entries of a returned tuple; None where its length cannot be read."""
    match value:
        case ast.Tuple(elts=entries):
            return None if any(isinstance(e, ast.Starred) for e in entries) else list(entries)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, second = _elements(left), _elements(right)
            return None if first is None or second is None else first + second
        case ast.BinOp(left=ast.Tuple(elts=entries), op=ast.Mult(), right=ast.Constant(value=int() as count)):
            return list(entries) * count
        case ast.Name() | ast.Call():
            return None if isinstance(value, ast.Call) and called_name(value) == "tuple" else [value]
        case _:
            return [value]
