"""Backward asks of each input by itself whether it needs a gradient."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from gradverify.source import parameters_of
from gradverify.verifier.diagnose.edits.source import Edit, Slot, Source, expression, slots

CAUSE = "frozen-input"

NEEDED = "needs_input_grad"


def asked_of_each(source: Source, forward: Sequence[Source]) -> Iterator[Edit]:
    """Backward asking for each gradient alone, then of another input, then of one more, then of any.

    `forward` tells how many inputs there are: the parameters of the function that has the most.
    """
    count = max((len(parameters_of(one.tree)) - 1 for one in forward), default=0)
    asked = [(slot, others) for slot in slots(source.tree) if (others := _others(slot, source, count))]
    yield from _apart(source)
    for slot, others in asked:
        yield from (Edit(slot, other, CAUSE) for other in others)
    for slot, others in asked:
        assert isinstance(slot.node, ast.expr)  # noqa: S101
        more = (ast.BoolOp(ast.Or(), [slot.node, other]) for other in others)
        yield from (Edit(slot, either, CAUSE) for either in more)
        yield Edit(slot, expression(f"any({source.context}.{NEEDED})"), CAUSE)


def _needed(source: Source, place: int) -> ast.expr:
    return expression(f"{source.context}.{NEEDED}[{place}]")


def _others(slot: Slot, source: Source, count: int) -> list[ast.expr]:
    """What asks of another input, where the place of a slot asks of one."""
    match slot.node:
        case ast.Subscript(value=ast.Attribute(attr=attr), slice=ast.Constant(value=int(place))):
            return [_needed(source, k) for k in range(count) if k != place] if attr == NEEDED else []
        case ast.Name(id=name, ctx=ast.Load()):
            names = _unpacked(source)
            others = [other for other in names if other != name]
            return [ast.Name(other, ast.Load()) for other in others] if name in names else []
        case _:
            return []


def _unpacked(source: Source) -> list[str]:
    """Names that say of one input each whether it needs a gradient."""
    for slot in slots(source.tree):
        match slot.node:
            case ast.Assign(
                targets=[ast.Tuple(elts=names)],
                value=ast.Attribute(attr=attr) | ast.Subscript(value=ast.Attribute(attr=attr)),
            ) if attr == NEEDED:
                return [name.id for name in names if isinstance(name, ast.Name)]
            case _:
                pass
    return []


def _apart(source: Source) -> Iterator[Edit]:
    """Several gradients that depend on one condition, each on that of its own input."""
    for slot in slots(source.tree):
        match slot.node:
            case ast.IfExp(body=ast.Tuple(elts=made), orelse=ast.Tuple(elts=without)) if len(made) == len(
                without
            ) and isinstance(slot.parent, ast.Return):
                pairs = enumerate(zip(made, without, strict=True))
                each = [ast.IfExp(_needed(source, k), one, other) for k, (one, other) in pairs]
                yield Edit(slot, ast.Tuple(list[ast.expr](each), ast.Load()), CAUSE)
            case _:
                pass
