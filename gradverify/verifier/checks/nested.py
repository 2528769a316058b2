"""Why a second derivative is zero: a Function that backward calls passes nothing on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.autograd.function import BackwardCFunction

from gradverify.verifier import guard
from gradverify.verifier.checks.random_signs import random_signs
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.calling import differentiate
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.problem import VjpProblem

SEED = 29
"""Of the grad_output that is sent through the double backward: random signs meet every entry."""

MOST_NODES = 2000
"""Nodes of a double backward's graph that are walked through."""


_Edge = tuple[int, int]
"""A node, by its identity, and the number of one of the nodes before it."""


def is_connected(second: VjpProblem, gradient: int, by: int) -> bool:
    """Whether a gradient has any way back to an input or grad_output, whatever comes through it."""
    found = _graph(second, gradient)
    return found is not None and _leads(found[0].grad_fn, found[1][by], but=frozenset())


def what_gives_nothing(second: VjpProblem, gradient: int, by: int) -> tuple[str, ...]:
    """Functions that get a grad_output and pass None or zeros on, where every way back leads through them."""
    found = _graph(second, gradient)
    if found is None:
        return ()
    value, leaves = found
    nodes = [n for n in _nodes(value.grad_fn) if isinstance(n, BackwardCFunction)]
    silent: list[tuple[Any, int]] = []
    handles = [node.register_hook(_noting(node, silent)) for node in nodes]
    try:
        layout = Layout.of([value])
        (cotangent,) = layout.unflatten(random_signs(layout.size, SEED))
        ran = guard.call(differentiate, [value], leaves, [cotangent])
    finally:
        for handle in handles:
            handle.remove()
    leaf, start = leaves[by], value.grad_fn
    edges = frozenset((id(node), k) for node, k in silent)
    if isinstance(ran, Raised) or _leads(start, leaf, but=edges):
        return ()
    on_the_way = (node for node, k in silent if _leads(node.next_functions[k][0], leaf, but=frozenset()))
    return tuple(dict.fromkeys(_name(node) for node in on_the_way))


def _graph(second: VjpProblem, gradient: int) -> tuple[Tensor, Sequence[Tensor]] | None:
    graph = second.graph(second.primals)
    if isinstance(graph, Raised) or graph.value.outputs[gradient].grad_fn is None:
        return None
    return graph.value.outputs[gradient], graph.value.leaves


def _noting(node: Any, silent: list[tuple[Any, int]]) -> Any:  # noqa: ANN401 - torch's nodes have no type
    def note(passed_on: Sequence[Tensor | None], came: Sequence[Tensor | None]) -> None:
        if any(_is_something(g) for g in came):
            silent.extend((node, k) for k, g in enumerate(passed_on) if not _is_something(g))

    return note


def _is_something(gradient: Tensor | None) -> bool:
    return gradient is not None and bool(gradient.any())


def _nodes(start: Any, but: frozenset[_Edge] = frozenset()) -> list[Any]:  # noqa: ANN401
    """Nodes on ways back from one that lead along none of certain edges."""
    seen: list[Any] = []
    known: set[int] = set()
    todo = [start]
    while todo and len(seen) < MOST_NODES:
        node = todo.pop()
        if node is None or id(node) in known:
            continue
        known.add(id(node))
        seen.append(node)
        todo += [before for k, (before, _) in enumerate(node.next_functions) if (id(node), k) not in but]
    return seen


def _leads(start: Any, leaf: Tensor, *, but: frozenset[_Edge]) -> bool:  # noqa: ANN401
    return any(getattr(node, "variable", None) is leaf for node in _nodes(start, but))


def _name(node: Any) -> str:  # noqa: ANN401
    forward = getattr(node, "_forward_cls", None)
    return getattr(forward, "__name__", "") or node.name().removesuffix("Backward")
