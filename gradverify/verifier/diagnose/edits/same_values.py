"""A change with which backward gives the same values, and writes, cuts or leaves out nothing any more.

No measured Jacobian contradicts such a mistake: what the report says of it is asked again with the change.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gradverify.source import parameters_of
from gradverify.verifier.diagnose.edits.out_of_place import CAUSE as IN_PLACE
from gradverify.verifier.diagnose.edits.out_of_place import computed_out_of_place
from gradverify.verifier.diagnose.edits.own_backward import OwnBackward, instead
from gradverify.verifier.diagnose.edits.recomputed import recomputed
from gradverify.verifier.diagnose.edits.search import AGREES, KEY, reported, reported_change
from gradverify.verifier.diagnose.edits.source import (
    Edit,
    Slot,
    Source,
    expression,
    is_harmless,
    parents_of,
    slots,
)
from gradverify.verifier.diagnose.evidence import InBackward
from gradverify.verifier.witnesses.values import probe

FROZEN = "frozen-input"

NEEDED = "needs_input_grad"


def out_of_place(owns: Sequence[OwnBackward]) -> InBackward | None:
    """The change with which backward leaves grad_output as it is at several calls, and gives what it gave.

    None for none. One that makes a wrong gradient right was found before.
    """
    known = next((one for own in owns for one in own.repairs.found if one[0].cause == IN_PLACE), None)
    if known is not None:
        return reported(*known).change
    return _first_that_holds(owns, lambda source, _: computed_out_of_place(source), _gives_the_same)


def _first_that_holds(
    owns: Sequence[OwnBackward],
    edits: Callable[[Source, Sequence[Source]], Iterator[Edit]],
    holds: Callable[[OwnBackward, Callable[..., Any]], bool],
) -> InBackward | None:
    """The first edit of backward, made of its source and forward's, that holds at every call."""
    source = owns[0].source() if owns else None
    if source is None or not is_harmless(source.function, source.tree):
        return None
    if not all(own.is_started() for own in owns):
        return None
    parents = parents_of(source.whole)
    for edit in edits(source, owns[0].forward_source()):
        with edit.slot.holding(edit.node):
            backward = source.compiled()
        if backward is not None and all(holds(own, backward) for own in owns):
            return reported_change(edit, source, parents)
    return None


def _gives_the_same(own: OwnBackward, backward: Callable[..., Any]) -> bool:
    """Whether it gives what the class's own gives, and leaves every grad_output as it is."""
    written: list[bool] = []

    def watched(ctx: Any, *given: Any) -> Any:  # noqa: ANN401
        before = [g.clone() if isinstance(g, Tensor) else None for g in given]
        found = backward(ctx, *given)
        pairs = zip(before, given, strict=True)
        written.append(any(b is not None and not torch.equal(b, g) for b, g in pairs))
        return found

    for output, block in enumerate(own.problem.outputs.blocks):
        u = probe(block.stop - block.start, KEY)
        expected, found = (own.pulled_back(output, u, one) for one in (own.own, watched))
        if expected is None or found is None or not torch.equal(expected, found):
            return False
    return bool(written) and not any(written)


def recomputed_in(owns: Sequence[OwnBackward], is_right: Callable[[], bool]) -> InBackward | None:
    """The change with which backward computes anew what forward keeps without its graph; None for none.

    `is_right` tells whether the second derivative is, with the backward that the class has then.
    """
    return _first_that_holds(owns, recomputed, _right_at_the_last_of(owns, is_right))


def asked_of_each_input(owns: Sequence[OwnBackward], is_right: Callable[[], bool]) -> InBackward | None:
    """The change with which no gradient hangs on which other inputs require grad; None for none.

    `is_right` tells whether that is so, with the backward that the class has then.
    """
    return _first_that_holds(owns, _asked_of_each, _right_at_the_last_of(owns, is_right))


def _right_at_the_last_of(
    owns: Sequence[OwnBackward], is_right: Callable[[], bool]
) -> Callable[[OwnBackward, Callable[..., Any]], bool]:
    """Whether a backward gives what the class's own gives, and at the last call `is_right` with it, too."""

    def holds(own: OwnBackward, backward: Callable[..., Any]) -> bool:
        if not _gives_about_the_same(own, backward):
            return False
        if own is not owns[-1]:
            return True
        with instead(own.function, own.name, backward):
            return is_right()

    return holds


def _gives_about_the_same(own: OwnBackward, backward: Callable[..., Any]) -> bool:
    """Whether it gives what the class's own gives, but for rounding."""
    for output, block in enumerate(own.problem.outputs.blocks):
        u = probe(block.stop - block.start, KEY)
        expected, found = (own.pulled_back(output, u, one) for one in (own.own, backward))
        if expected is None or found is None:
            return False
        if not bool(((expected - found).abs() <= AGREES * expected.abs().max()).all()):
            return False
    return True


def _asked_of_each(source: Source, forward: Sequence[Source]) -> Iterator[Edit]:
    """Backward asking for each gradient alone, then of another input, then of one more, then of any.

    `forward` tells how many inputs there are: the parameters of the function that has the most.
    """
    count = max((len(parameters_of(one.tree)) - 1 for one in forward), default=0)
    asked = [(slot, others) for slot in slots(source.tree) if (others := _others(slot, source, count))]
    yield from _apart(source)
    for slot, others in asked:
        yield from (Edit(slot, other, FROZEN) for other in others)
    for slot, others in asked:
        assert isinstance(slot.node, ast.expr)  # noqa: S101
        more = (ast.BoolOp(ast.Or(), [slot.node, other]) for other in others)
        yield from (Edit(slot, either, FROZEN) for either in more)
        yield Edit(slot, expression(f"any({source.context}.{NEEDED})"), FROZEN)


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
                yield Edit(slot, ast.Tuple(list[ast.expr](each), ast.Load()), FROZEN)
            case _:
                pass
