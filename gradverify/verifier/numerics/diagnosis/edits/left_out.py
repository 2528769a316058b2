"""Statements that forward makes of a value and backward, which computes the value again, leaves out."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence

from gradverify.verifier.numerics.diagnosis.edits.difference import made_of
from gradverify.verifier.numerics.diagnosis.edits.edit import Edit, filled
from gradverify.verifier.numerics.diagnosis.edits.known import attributes_in
from gradverify.verifier.numerics.diagnosis.edits.source import Slot, Source, slots


def of_left_out(source: Source, forward: Sequence[Source]) -> Iterator[Edit]:
    """`x = f(x)` of forward behind each statement of backward that sets `x`, where backward has none such."""
    own = {ast.unparse(node) for node in ast.walk(source.whole) if isinstance(node, ast.stmt)}
    lost = [made for one in forward for made in _updates(one, source) if ast.unparse(made) not in own]
    for slot in slots(source.tree):
        node = slot.node
        if isinstance(node, ast.Assign | ast.AugAssign) and slot.place >= 0:
            block: list[ast.stmt] = getattr(slot.parent, slot.field)
            for made in (one for one in lost if _name(one) in _set_in(node)):
                for place in range(slot.place, min(slot.place + 1 + FURTHER, len(block) - 1)):
                    yield _behind(Slot(slot.parent, slot.field, place, block[place]), made)


FURTHER = 3
"""Statements behind the one that sets a value, behind which it may be meant to change."""


def _behind(slot: Slot, made: ast.Assign | ast.AugAssign) -> Edit:
    assert isinstance(slot.node, ast.stmt)  # noqa: S101
    cause = made_of(made.value, _name(made)) or "operand"
    return Edit(slot, [slot.node, copy.deepcopy(made)], cause, is_whole=True, is_simple=False)


def _updates(forward: Source, own: Source) -> Iterator[ast.Assign | ast.AugAssign]:
    """Assignments of forward whose value is made of the name that they set, as backward would write them."""
    held = attributes_in([forward], own)
    local = {name.id for name in ast.walk(own.tree) if isinstance(name, ast.Name)}
    context = ast.Name(own.context, ast.Load())
    names = {a: ast.Attribute(context, a, ast.Load()) for a in held if a not in local}
    for node in ast.walk(forward.tree):
        if isinstance(node, ast.Assign | ast.AugAssign) and (name := _name(node)):
            used = {one.id for one in ast.walk(node.value) if isinstance(one, ast.Name)}
            if name in used or isinstance(node, ast.AugAssign):
                made = copy.deepcopy(node)
                made.value = filled(made.value, names)
                yield made


def _name(node: ast.Assign | ast.AugAssign) -> str:
    """The name that it sets; empty where it sets another thing, or several."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""


def _set_in(node: ast.Assign | ast.AugAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
