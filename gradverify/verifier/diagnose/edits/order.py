"""Which changes of a backward are tried, the likeliest first."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from gradverify.verifier.diagnose.edits.edit import Edit
from gradverify.verifier.diagnose.edits.elsewhere import added, centred, multiplied, renumbered, replaced
from gradverify.verifier.diagnose.edits.flow import flow_of
from gradverify.verifier.diagnose.edits.rewrites import around, by_form, cause_of_number
from gradverify.verifier.diagnose.edits.scene import Scene, Value
from gradverify.verifier.diagnose.edits.source import Slot
from gradverify.verifier.diagnose.edits.statements import of_statements


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
    statements = list(of_statements(scene.source.whole))
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
        yield from by_form(slot, value, scene.parents)
        yield from renumbered(slot, value, names, cause_of_number(slot, scene.parents))
    for slot, value in values:
        yield from replaced(slot, value, names)
    for slot, value in values:
        yield from around(slot, value)
    for known in (names, others):
        makers = (centred, multiplied, added) if known is names else (replaced, multiplied, added)
        for made in makers:
            for slot, value in values:
                yield from made(slot, value, known)
