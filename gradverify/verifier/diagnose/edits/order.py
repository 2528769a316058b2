"""Which changes of a backward are tried, the likeliest first: by the gradients that a place takes part in."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from gradverify.source import called_name, root_name
from gradverify.verifier.diagnose.edits.edit import Edit
from gradverify.verifier.diagnose.edits.known import Value, centred, multiplied, renumbered, replaced
from gradverify.verifier.diagnose.edits.rewrites import around, by_form, cause_of_number, of_statements
from gradverify.verifier.diagnose.edits.source import Slot
from gradverify.verifier.diagnose.edits.traced_backward import TracedBackward

RANKS = 3
"""Places of the wrong gradients alone, of some of them alone, of right ones too."""

Names = set[str]


def edits_of(run: TracedBackward, wrong: frozenset[int]) -> Iterator[Edit]:
    """First of what takes part in the gradients that are wrong alone; none of what is in none of them."""
    positions = positions_in(run.source.tree, run.source.helpers)

    def rank(slot: Slot) -> int | None:
        reached = positions.get(id(slot.node), wrong)
        return 0 if reached == wrong else None if not reached & wrong else 1 if reached <= wrong else 2

    values = [(slot, run.values[k]) for k, slot in enumerate(run.slots) if k in run.values]
    ranks = [rank(slot) for slot, _ in values]
    statements = [(edit, rank(edit.slot)) for edit in of_statements(run.source.whole)]
    for now in range(RANKS):
        yield from (edit for edit, k in statements if k == now)
        yield from _of_values([pair for pair, k in zip(values, ranks, strict=True) if k == now], run)


def _of_values(values: Sequence[tuple[Slot, Value]], run: TracedBackward) -> Iterator[Edit]:
    """The likeliest first: of what stands there, what may be lost around it, then what stands elsewhere."""
    for slot, value in values:
        yield from by_form(slot, value, run.parents)
        yield from renumbered(slot, value, run.known, cause_of_number(slot, run.parents))
    for slot, value in values:
        yield from replaced(slot, value, run.known)
    for slot, value in values:
        yield from around(slot, value)
    for made in (centred, multiplied):
        for slot, value in values:
            yield from made(slot, value, run.known)


def positions_in(tree: ast.FunctionDef, helpers: Sequence[ast.FunctionDef] = ()) -> dict[int, frozenset[int]]:
    """By the id of a node, which of the gradients that a backward returns it takes part in, as names tell.

    Whatever the order of the statements. Empty for a backward that does not end with one `return` of them.
    """
    returned = [node.value for node in tree.body if isinstance(node, ast.Return)]
    value = returned[-1] if returned else None
    values = value.elts if isinstance(value, ast.Tuple) else [value] if value is not None else []
    if any(isinstance(v, ast.Starred) for v in values):
        return {}
    made = [*_made(tree), *((one, {one.name}, _loaded(one) - _own(one)) for one in helpers)]
    behind = [_behind(_loaded(expression), made) for expression in values]
    found: dict[int, frozenset[int]] = {}
    for statement, defined, _ in made:
        reached = frozenset(k for k, names in enumerate(behind) if defined & names)
        found.update((id(node), reached) for node in ast.walk(statement))
    for k, expression in enumerate(values):
        found.update((id(node), frozenset({k})) for node in ast.walk(expression))
    return found


def _behind(names: Names, made: Sequence[tuple[ast.stmt, Names, Names]]) -> Names:
    """These names, and all those that statements make them of."""
    while True:
        more = names.union(*(used for _, defined, used in made if defined & names))
        if more == names:
            return names
        names = more


def _made(tree: ast.AST, control: Names = frozenset()) -> Iterator[tuple[ast.stmt, Names, Names]]:  # type: ignore[assignment]
    """Statements with the names that they make and those that they use, each before the ones within it."""
    for statement in getattr(tree, "body", []) + getattr(tree, "orelse", []):
        match statement:
            case ast.For(iter=header) | ast.If(test=header):
                used = control | _loaded(header)
                yield statement, _stored(statement), used
                yield from _made(statement, used)
            case ast.With():
                yield from _made(statement, control)
            case ast.Return():
                pass
            case _:
                named = {statement.name} if isinstance(statement, ast.FunctionDef) else set()
                yield statement, named | _stored(statement), control | _loaded(statement)


def _own(function: ast.FunctionDef) -> Names:
    """Names of a function that stands beside: nothing outside of it has them."""
    given = {argument.arg for argument in ast.walk(function) if isinstance(argument, ast.arg)}
    names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    return given | {name.id for name in names if isinstance(name.ctx, ast.Store)}


def _stored(tree: ast.AST) -> Names:
    """Names that are set anywhere in a tree, or whose value is written into."""
    found: Names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(root_name(node))
        elif isinstance(node, ast.Call) and (
            called_name(node) == "append" or called_name(node).endswith("_")
        ):
            found.add(root_name(node.func))
    return found


def _loaded(tree: ast.AST) -> Names:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
