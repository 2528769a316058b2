"""Which changes of a backward are tried, the likeliest first."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from gradverify.verifier.numerics.diagnosis.edits.around import of_values
from gradverify.verifier.numerics.diagnosis.edits.edit import Edit
from gradverify.verifier.numerics.diagnosis.edits.elsewhere import added, centred, multiplied, replaced
from gradverify.verifier.numerics.diagnosis.edits.flow import flow_of
from gradverify.verifier.numerics.diagnosis.edits.left_out import of_left_out
from gradverify.verifier.numerics.diagnosis.edits.operators import of_operators
from gradverify.verifier.numerics.diagnosis.edits.own_functions import of_own_functions, own_functions
from gradverify.verifier.numerics.diagnosis.edits.products import added_products, returned_by
from gradverify.verifier.numerics.diagnosis.edits.roles import role_of
from gradverify.verifier.numerics.diagnosis.edits.scene import Scene, Value
from gradverify.verifier.numerics.diagnosis.edits.source import Slot
from gradverify.verifier.numerics.diagnosis.edits.statements import of_statements


def edits_of(scene: Scene, wrong: frozenset[int]) -> Iterator[Edit]:
    """First of what takes part in the gradients that are wrong alone; none of what is in none of them."""
    flow = flow_of(scene.source.tree, scene.source.helpers)

    def rank(slot: Slot) -> int | None:
        reached = flow.of(slot.node if isinstance(slot.node, ast.AST) else slot.parent, scene.parents)
        if not flow.everything or reached == wrong:
            return 0
        return None if not reached & wrong else 1 if reached <= wrong else 2

    values = [(slot, scene.values[k]) for k, slot in enumerate(scene.slots) if k in scene.values]
    ranks = [rank(slot) for slot, _ in values]
    statements = [*of_statements(scene.source.whole), *of_left_out(scene.source, scene.forward)]
    of = [
        min((k for s in _statements(edit) if (k := rank(s)) is not None), default=None) for edit in statements
    ]
    for now in range(3):
        yield from (edit for edit, k in zip(statements, of, strict=True) if k == now)
        yield from _of_values([pair for pair, k in zip(values, ranks, strict=True) if k == now], scene)


def _statements(edit: Edit) -> list[Slot]:
    """The places of what a change alters: of a block's statements those that are others then."""
    before, after = edit.slot.node, edit.node
    if not isinstance(before, list) or not isinstance(after, list):
        return [edit.slot]
    parent, field = edit.slot.parent, edit.slot.field
    differing = [k for k, (a, b) in enumerate(zip(before, after, strict=True)) if a is not b]
    return [Slot(parent, field, k, before[k]) for k in differing]


def _of_values(values: Sequence[tuple[Slot, Value]], scene: Scene) -> Iterator[Edit]:
    """The likeliest first: of what stands there, what may be lost around it, then what stands elsewhere."""
    names = [one for one in scene.known if one.is_name]
    others = [one for one in scene.known if not one.is_name]
    for slot, value in values:
        yield from of_operators(slot, value, names, role_of(slot, scene))
    for slot, value in values:
        yield from replaced(slot, value, names)
    functions = own_functions(scene.source, scene.forward)
    for slot, value in values:
        yield from of_values(slot, value)
        yield from of_own_functions(slot, value, functions)
    returned = returned_by(scene.source.tree)
    further: Sequence[Callable[[Slot, Value], Iterator[Edit]]] = (
        lambda slot, value: centred(slot, value, names),
        lambda slot, value: multiplied(slot, value, names, names=True),
        lambda slot, value: added(slot, value, names),
        lambda slot, value: added_products(slot, value, names, returned),
        lambda slot, value: replaced(slot, value, others),
        lambda slot, value: multiplied(slot, value, others, names=False),
        lambda slot, value: added(slot, value, others),
    )
    for made in further:
        for slot, value in values:
            yield from (replace(edit, is_simple=False) for edit in made(slot, value))
