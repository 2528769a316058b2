"""Where a backward starts: the values it has at hand, and what forward would have to save beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.verifier.suggest.graph import Node
from gradverify.verifier.suggest.recording import CannotSuggestError, Recorded

RANDOM = ("rand", "bernoulli", "dropout", "normal", "multinomial", "exponential", "uniform")
"""Parts of the names of operations whose results cannot be computed again."""

SAME_VALUE = 1e-13
"""Relative difference of one value computed in two ways."""


@dataclass(frozen=True)
class Cut:
    """The values that backward starts from, and those it computes."""

    at_hand: Mapping[Node, str]
    """What stands for each value that is there when backward begins."""
    computed: tuple[Node, ...]
    """Every value that backward computes, each after what it is made of."""
    used_grads: frozenset[str]
    used: frozenset[str]
    """Names of the saved values that it uses."""
    extra: tuple[str, ...]
    """Inputs and outputs of forward that it must save beside what it saves."""
    cuts_graph: bool
    """It uses an intermediate value that forward saved: autograd does not know how that came about."""


def cut(recorded: Recorded) -> Cut:
    """Start from what forward saved; save an output rather than computing it again.

    Raises `CannotSuggestError` for values that backward cannot have.
    """
    grads = {node: node.args[0] for node in recorded.grad_outputs}
    saved = {node: name for name, node in recorded.saved if node is not None}
    on_ctx = {node: f"ctx.{n}" for n, node in recorded.attributes.items() if isinstance(node, Node)}
    inputs = {node: name for name, node in recorded.inputs.items()}
    outputs = {node: name for name, node in recorded.outputs.items() if node.op != "name"}
    wanted = [node for node in recorded.gradients.values() if node is not None]
    choices = []
    for offered in ({}, outputs):
        at_hand = _with_equal_values({**inputs, **offered, **on_ctx, **saved, **grads}, recorded.values)
        order = list(_order(wanted, at_hand))
        reached = {at_hand[n] for node in (*order, *wanted) for n in (*node.inputs, node) if n in at_hand}
        there = {*saved.values(), *on_ctx.values(), *grads.values()}
        extra = tuple(
            name for name in {**inputs, **offered}.values() if name in reached and name not in there
        )
        choices.append((len(extra), -len(offered), at_hand, order, reached, extra))
    _, _, at_hand, order, reached, extra = min(choices, key=lambda c: c[:2])
    _refuse_what_cannot_be_had(order)
    known_to_autograd = {*inputs, *recorded.outputs.values(), *grads}
    return Cut(
        at_hand=at_hand,
        computed=tuple(order),
        used_grads=frozenset(name for name in grads.values() if name in reached),
        used=frozenset(name for name in saved.values() if name in reached),
        extra=extra,
        cuts_graph=any(
            name in reached and node not in known_to_autograd and _varies(node, recorded)
            for node, name in {**on_ctx, **saved}.items()
        ),
    )


def _varies(node: Node, recorded: Recorded) -> bool:
    """Whether a saved value has a derivative, which autograd would miss."""
    differentiated = {recorded.inputs[name] for name in recorded.gradients}
    seen: set[Node] = set()

    def varies(one: Node) -> bool:
        if one in seen or (
            one.dtype is not None and not (one.dtype.is_floating_point or one.dtype.is_complex)
        ):
            return False
        seen.add(one)
        return one in differentiated or (not _is_random(one) and any(varies(i) for i in one.inputs))

    return varies(node)


def _is_random(node: Node) -> bool:
    return any(part in node.op for part in RANDOM)


def _with_equal_values(at_hand: dict[Node, str], values: Mapping[Node, Tensor]) -> dict[Node, str]:
    """Other ways to compute a value that is there: as a reference has them. Equal by no chance."""
    there = [(values[n], name) for n, name in at_hand.items() if n in values and _is_telling(values[n])]
    equal = dict(at_hand)
    for node, value in values.items():
        if node in equal or not _is_telling(value):
            continue
        name = next((name for other, name in there if _equal(value, other)), None)
        if name is not None:
            equal[node] = name
    return equal


def _is_telling(value: Tensor) -> bool:
    """Whether no other value is likely to be the same."""
    return value.is_floating_point() and value.numel() > 1 and len(set(value.flatten().tolist())) > 1


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, rtol=SAME_VALUE, atol=0.0)


def _order(wanted: Sequence[Node], at_hand: Mapping[Node, str]) -> Iterator[Node]:
    seen: set[Node] = set()

    def visit(node: Node) -> Iterator[Node]:
        if node in seen or node in at_hand:
            return
        seen.add(node)
        for one in node.inputs:
            yield from visit(one)
        yield node

    for node in wanted:
        yield from visit(node)


def _refuse_what_cannot_be_had(order: Sequence[Node]) -> None:
    for node in order:
        if node.op == "name":
            raise CannotSuggestError("forward uses a constant tensor that is not one of its arguments")
        if _is_random(node):
            raise CannotSuggestError(
                f"backward would need the random values of forward (`{node.op}`), which it does not save"
            )
