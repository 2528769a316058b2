"""Backward is right for a forward one of whose expressions is a constant, or has another one's derivative.

Forward's own source gives the same values with one such change in it, and torch differentiates it: nothing
runs but what forward runs anyway.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradverify.verifier.diagnose.edits.own_backward import OwnBackward
from gradverify.verifier.diagnose.edits.rewrites import forms, is_module
from gradverify.verifier.diagnose.edits.source import Edit, Slot, Source, slots, source_of, with_helpers
from gradverify.verifier.diagnose.evidence import ROUNDING, Cause, Pair, Pairs, of_gradient
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.problem import Layout
from gradverify.verifier.targets.discover import uses_setup_context
from gradverify.verifier.targets.forward_itself import StandInContext
from gradverify.verifier.witnesses.values import probe

SAME = 1e-7
"""Gradients along one grad_output agree within this share of the sum of their terms."""

MOST_ROWS = 400
"""Rows of a block that are still compared one by one."""

SHARE = 10
"""One change of forward is tried for so many calls that are left: each runs forward and backward."""

KEY = 17
"""Of the random grad_output."""

LONGEST_REPORTED = 60
"""Characters of an expression that a sentence quotes."""

NO_NUMBER = "what is differentiated in its place is no number"

_DERIVED = "_gradverify_derived"
"""A function of a value and of what it is differentiated as."""

Forward = Callable[..., Any]


@dataclass(frozen=True)
class ForwardEdit:
    """One change of forward's source that leaves its values as they are."""

    source: Source
    edit: Edit
    instead: ast.expr | None
    """What is differentiated in its place; None where it is a constant."""


def other_derivative(pairs: Pairs) -> Cause | None:
    """The first change of forward's source after which torch's gradient is what backward gives."""
    first = next((pair for pair in pairs if pair.is_wrong and pair.nonzero.any()), None)
    own = None if first is None else first.point.own_backward
    if own is None or first is None or any(_is_too_large(pair) for pair in pairs):
        return None
    ordered = [first, *(pair for pair in pairs if pair is not first)]
    found = next((one for one in own.repairs.forward if _holds(one, ordered)), None)
    if found is None:
        found = next((one for one in _candidates(own, first) if _holds(one, ordered)), None)
        own.repairs.forward += [] if found is None else [found]
    return None if found is None else _reported(found, first)


def _is_too_large(pair: Pair) -> bool:
    return pair.point.own_backward is None or pair.claimed.shape[0] > MOST_ROWS


def _candidates(own: OwnBackward, first: Pair) -> Iterator[ForwardEdit]:
    """Where torch differentiates forward as it is measured: every expression a constant, then another one."""
    source = source_of(own.function.forward)
    if source is None:
        return
    source = with_helpers(source, [])
    plain = _of_class(own, source)
    if plain is None or not _gives(first, plain, first.true):
        return
    places = [slot for slot in slots(source.whole) if _is_value(slot)]
    made = [
        *((slot, None, "missing-term") for slot in places),
        *((slot, other, cause) for slot in places for other, cause in _others(_expression(slot))),
    ]
    for slot, other, named in made[: own.repairs.allowance.left // SHARE]:
        slope = ast.Constant(None) if other is None else other
        call = ast.Call(ast.Name(_DERIVED, ast.Load()), [_expression(slot), slope], [])
        # Another derivative is another factor of the chain rule, unless a term of it is lost.
        cause = named if named == "missing-term" else "chain-factor"
        yield ForwardEdit(source, Edit(slot, call, cause), other)


def _others(node: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    """What may be differentiated in the place of an expression: another form, or an argument."""
    yield from forms(node)
    if isinstance(node, ast.Call):
        func = node.func
        owner = [func.value] if isinstance(func, ast.Attribute) and not is_module(func.value) else []
        single = (part for part in (*owner, *node.args) if not isinstance(part, ast.Starred))
        yield from ((part, "chain-factor") for part in single)


def _expression(slot: Slot) -> ast.expr:
    assert isinstance(slot.node, ast.expr)  # noqa: S101
    return slot.node


def _is_value(slot: Slot) -> bool:
    """Whether an expression stands there that may come to a tensor with a gradient."""
    node, parent = slot.node, slot.parent
    is_function = isinstance(parent, ast.Call) and slot.field == "func"
    is_read = isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
    is_expression = isinstance(node, ast.BinOp | ast.Call | ast.Name | ast.Subscript)
    is_owner = isinstance(parent, ast.Attribute) and isinstance(node, ast.Name)
    return is_expression and is_read and not is_function and not is_owner


def _derived(value: Any, slope: Any) -> Any:  # noqa: ANN401 - what stands in forward
    """The value with the derivative of something else."""
    if not isinstance(value, Tensor):
        return value
    if not isinstance(slope, Tensor):
        return value.detach()
    if not bool(slope.isfinite().all()):  # a loop until it converges would never end
        raise ValueError(NO_NUMBER)
    return value.detach() + (slope - slope.detach()).expand(value.shape)


def _of_class(own: OwnBackward, source: Source) -> Forward | None:
    """Forward as its source is now, as a function of its arguments."""
    made = source.compiled({_DERIVED: _derived})
    if made is None:
        return None
    if uses_setup_context(own.function):
        return made

    def run(*arguments: Any) -> Any:  # noqa: ANN401
        needs = [isinstance(a, Tensor) and a.requires_grad for a in arguments]
        return made(StandInContext(needs), *arguments)

    return run


def _holds(one: ForwardEdit, pairs: Sequence[Pair]) -> bool:
    """Whether torch's gradient with the change is backward's, along one grad_output and then in every row."""
    own = pairs[0].point.own_backward
    with one.edit.slot.holding(one.edit.node):
        forward = None if own is None else _of_class(own, one.source)
    if forward is None or not _gives(pairs[0], forward, pairs[0].claimed):
        return False
    for pair in pairs:
        rows = _rows(pair, forward, torch.eye(pair.claimed.shape[0], dtype=torch.float64))
        if rows is None or not pair.explained_by(rows, torch.zeros_like(rows)):
            return False
    return True


def _gives(pair: Pair, forward: Forward, block: Tensor) -> bool:
    """Whether torch's gradient of a forward is that of a block, along one random grad_output."""
    u = probe(block.shape[0], KEY)
    rows = _rows(pair, forward, u[None])
    judged = pair.known.all(dim=0)
    if rows is None or not judged.any():
        return False
    terms = pair.claimed.abs() + pair.true.abs() + pair.bound / SAME
    allowed = SAME * (u.abs() @ terms) + ROUNDING * pair.scale * u.abs().sum()
    return bool(((rows[0] - u @ block).abs() <= allowed)[judged].all())


def _rows(pair: Pair, forward: Forward, cotangents: Tensor) -> Tensor | None:
    """Torch's gradients by a pair's input for grad_outputs of its output, R × m; R × n."""
    own = pair.point.own_backward
    assert own is not None  # noqa: S101
    problem = replace(own.problem, function=forward)
    graph = problem.graph(problem.primals)
    if isinstance(graph, Raised) or not graph.value.outputs[pair.output].requires_grad:
        return None
    output = problem.outputs.blocks[pair.output]
    whole = torch.zeros(len(cotangents), problem.outputs.size, dtype=torch.float64)
    whole[:, output.start : output.stop] = cotangents
    parts = (problem.outputs.unflatten(row) for row in whole)
    given = [[t if k == pair.output else None for k, t in enumerate(part)] for part in parts]
    found = problem.back_each(graph.value, given)
    if isinstance(found, Raised):
        return None
    inputs = Layout.of(graph.value.leaves)
    block = pair.source_block
    rows = torch.stack([inputs.flatten(row)[block.start : block.stop] for row in found.value])
    return rows if bool(rows.isfinite().all()) else None


def _reported(one: ForwardEdit, pair: Pair) -> Cause:
    node = _expression(one.edit.slot)
    text = " ".join(ast.unparse(node).split())
    file = Path(one.source.function.__code__.co_filename).name
    place = f"`{text[:LONGEST_REPORTED]}` ({file}:{getattr(node, 'lineno', 0)})"
    what = f"{of_gradient(pair)} is what it would be"
    if one.instead is None:
        advice = "Add the term that comes through it."
        return Cause(one.edit.cause, f"{what} if {place} were a constant", advice, is_weak=True)
    instead = " ".join(ast.unparse(one.instead).split())
    what += f" with the derivative of `{instead}` in place of that of {place}"
    return Cause(one.edit.cause, what, "Is a factor of the chain rule missing there?", is_weak=True)
