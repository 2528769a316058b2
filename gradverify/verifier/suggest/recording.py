"""What forward runs, what it saves, and the gradient torch derives from it, recorded at one point.

Where a backward starts: the values it has at hand, and what forward would have to save beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.fx import GraphModule, Interpreter
from torch.fx.node import Node as FxNode
from torch.utils import _pytree

from gradverify.verifier.numerics.calling import copies, returned_tensors, substitute
from gradverify.verifier.numerics.tracing import (
    MOST_OPERATIONS,
    NoMemoryError,
    functional_graph,
    recorded_graph,
    without_cuts,
)
from gradverify.verifier.questions.subject import Sample
from gradverify.verifier.suggest.graph import Builder, Node, decompositions
from gradverify.verifier.targets.forward_itself import run_watched
from gradverify.verifier.targets.operators import Operator
from gradverify.verifier.witnesses.values import probe

NOTHING_RECORDED = "forward leaves torch nothing to differentiate (NumPy, a kernel)"


class CannotSuggestError(Exception):
    """Why there is nothing to suggest, as a sentence without its end."""


@dataclass(frozen=True)
class Recorded:
    """One forward and its gradient as values of one graph."""

    inputs: dict[str, Node]
    """The tensors forward was called with, by parameter."""
    grad_outputs: tuple[Node, ...]
    """One for each output of forward, named."""
    gradients: dict[str, Node | None]
    """By parameter; None where the outputs do not depend on it."""
    saved: tuple[tuple[str, Node | None], ...]
    """What forward saved, named; None where it saved None."""
    attributes: dict[str, Any]
    """What forward put on its ctx: nodes for tensors, other values as they are."""
    outputs: dict[str, Node]
    """Outputs of forward by name."""
    names: dict[Node, str]
    """Forward's own names of its intermediate values."""
    constants: dict[str, Any]
    """Arguments of forward that are not tensors, by parameter."""
    materializes: bool
    """Undefined grad_outputs become zeros."""
    values: dict[Node, Tensor]
    """What each value was at this point."""
    operations: int
    """How many operations forward, or what stands for it, runs."""


def record(
    sample: Sample, function: type[Function] | Operator, composite: Callable[..., Any] | None
) -> Recorded:
    """Record forward, and the gradient of `composite` (of forward itself where it is None).

    Raises `CannotSuggestError`, and whatever user code raises.
    """
    call = substitute(sample.arguments, copies(sample.problem.primals))
    leaves, structure = _pytree.tree_flatten(call)
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    tensors = [leaves[k].detach().clone() for k in places]
    names = [a.name for a in sample.arguments if isinstance(a.value, Tensor)]
    if len(names) != len(places) or any(a.in_list for a in sample.arguments):
        raise CannotSuggestError("it takes lists of tensors")
    ran = _Ran()

    def forward(*given: Tensor) -> list[Tensor]:
        values = dict(zip(places, given, strict=True))
        arguments = _pytree.tree_unflatten([values.get(k, leaf) for k, leaf in enumerate(leaves)], structure)
        return ran.keep(function, arguments, composite, given)

    sample.problem.random_states.replay()
    with torch.no_grad():
        try:
            first = without_cuts(functional_graph(forward, tensors))
        except NoMemoryError:
            raise CannotSuggestError(NOTHING_RECORDED) from None
        values = first(*tensors)
    count = sum(node.op == "call_function" for node in first.graph.nodes)
    if count > MOST_OPERATIONS:
        raise CannotSuggestError(
            f"forward runs {count} operations, as a loop does: a backward is written out for up to "
            f"{MOST_OPERATIONS}. Write the loop by hand: the same steps, last one first"
        )
    wanted = [k for k, name in enumerate(names) if name in sample.problem.input_names]
    places_of_outputs = ran.differentiated(sample)
    outputs = sample.problem.outputs
    cotangents = outputs.unflatten(probe(outputs.size, sample.case.seed + 47))
    if [values[k].shape for k in places_of_outputs] != [t.shape for t in cotangents]:
        raise CannotSuggestError("it has not the outputs of forward")
    given = [*tensors, *cotangents]
    backward = recorded_graph(_joint(first, len(tensors), wanted, places_of_outputs), given)
    with torch.no_grad():
        whole = without_cuts(functional_graph(backward, given, decompositions()))
    return replace(_read(whole, given, names, wanted, ran, sample), operations=count)


class _Ran:
    """Where forward's values lie in the flat list of what the recorded function returns."""

    def __init__(self) -> None:
        self.values: list[Tensor] = []
        self.outputs: list[int | None] = []
        self.own_outputs: list[int | None] = []
        self.output_names: list[str] = []
        self.saved: list[tuple[str, int | None]] = []
        self.attributes: dict[str, Any] = {}
        self.attribute_places: dict[str, int] = {}
        self.locals: dict[str, int] = {}
        self.materializes = True

    def keep(
        self,
        function: type[Function] | Operator,
        arguments: Sequence[Any],
        composite: Callable[..., Any] | None,
        given: Sequence[Tensor],
    ) -> list[Tensor]:
        result, context, found = run_watched(function, arguments)
        named = {n: v for n, v in found.items() if isinstance(v, Tensor) and not any(v is g for g in given)}
        returned = returned_tensors(result)
        differentiated = returned if composite is None else returned_tensors(composite(*arguments))
        self.values = []
        self.outputs = [self._put(r) if isinstance(r, Tensor) else None for r in differentiated]
        self.own_outputs = [self._put(r) if isinstance(r, Tensor) else None for r in returned]
        self.output_names = [
            _name_of(r, named) or _output_name(k, len(returned)) for k, r in enumerate(returned)
        ]
        self.saved = [self._saved(k, s, found) for k, s in enumerate(context.saved_tensors)]
        self.attributes = {n: v for n, v in context.attributes.items() if not isinstance(v, Tensor)}
        self.attribute_places = {
            n: self._put(v) for n, v in context.attributes.items() if isinstance(v, Tensor)
        }
        self.locals = {name: self._put(value) for name, value in named.items()}
        self.materializes = context.materialize_grads
        return self.values

    def _put(self, value: Tensor) -> int:
        self.values.append(value)
        return len(self.values) - 1

    def _saved(self, position: int, value: Any, found: dict[str, Any]) -> tuple[str, int | None]:  # noqa: ANN401
        if not isinstance(value, Tensor):
            return f"_saved_{position}", None
        return _name_of(value, found) or f"saved_{position}", self._put(value)

    def differentiated(self, sample: Sample) -> list[int]:
        """Places of the outputs that are differentiated."""
        places = [self.outputs[p] for p in sample.problem.output_positions if p < len(self.outputs)]
        return [p for p in places if p is not None]


def _name_of(value: Any, named: dict[str, Any]) -> str:  # noqa: ANN401
    return next((name for name, other in named.items() if other is value and name != "ctx"), "")


def _output_name(position: int, count: int) -> str:
    return "output" if count == 1 else f"output_{position}"


def _joint(graph: GraphModule, count: int, wanted: list[int], outputs: list[int]) -> Callable[..., Any]:
    def joint(*given: Tensor) -> list[Tensor]:
        tensors = [t.detach() for t in given[:count]]
        for k in wanted:
            tensors[k].requires_grad_()
        with torch.enable_grad():
            values = graph(*tensors)
            if not all(values[k].requires_grad for k in outputs):
                raise CannotSuggestError(NOTHING_RECORDED)
            found = torch.autograd.grad(
                [values[k] for k in outputs], [tensors[k] for k in wanted], given[count:], allow_unused=True
            )
        gradients: list[Tensor | None] = list(found)
        used = [torch.zeros(0) if g is None else g for g in gradients]
        return [*used, *values]

    return joint


class _Reader(Interpreter):
    """Runs the graph once more and builds an expression for each of its values."""

    def __init__(self, graph: GraphModule, leaves: Sequence[Node], builder: Builder) -> None:
        super().__init__(graph)
        self._builder, self._leaves = builder, iter(leaves)
        self.of: dict[FxNode, Any] = {}
        self.results: list[Any] = []
        self.values: dict[Node, Tensor] = {}

    def run_node(self, n: FxNode) -> Any:  # noqa: ANN401
        value = super().run_node(n)
        if n.op == "placeholder":
            self.of[n] = next(self._leaves)
        elif n.op == "output":
            self.results = list(self._arguments(n.args[0]))
        elif n.op == "get_attr":
            self.of[n] = self._constant(value)
        else:
            args, kwargs = self._arguments(n.args), {k: self._arguments(v) for k, v in n.kwargs.items()}
            op = getattr(n.target, "overloadpacket", n.target)
            name = getattr(op, "__name__", str(op))
            shape, dtype = (tuple(value.shape), value.dtype) if isinstance(value, Tensor) else ((), None)
            made = Node(name, args, tuple(sorted(kwargs.items())), shape, dtype, n.target)
            self.of[n] = self._builder.made(made)
        if isinstance(value, Tensor):
            self.values[self.of[n]] = value
        return value

    def _arguments(self, value: Any) -> Any:  # noqa: ANN401
        if isinstance(value, FxNode):
            return self.of[value]
        if isinstance(value, list | tuple):
            return tuple(self._arguments(v) for v in value)
        return value

    def _constant(self, value: Any) -> Node:  # noqa: ANN401
        if isinstance(value, Tensor) and value.numel() == 1:
            return self._builder.kept(Node("literal", (value.item(),), dtype=value.dtype))
        return self._builder.named("", value)


def _read(
    graph: GraphModule,
    tensors: Sequence[Tensor],
    names: list[str],
    wanted: list[int],
    ran: _Ran,
    sample: Sample,
) -> Recorded:
    builder = Builder()
    inputs = {n: builder.named(n, t) for n, t in zip(names, tensors, strict=False)}
    positions = sample.problem.output_positions
    grads = [_grad_name(p, ran.output_names) for p in positions]
    grad_nodes = [builder.named(n, t) for n, t in zip(grads, tensors[len(names) :], strict=True)]
    reader = _Reader(graph, [*inputs.values(), *grad_nodes], builder)
    sample.problem.random_states.replay()
    with torch.no_grad():
        reader.run(*tensors)
    gradients, values = reader.results[: len(wanted)], reader.results[len(wanted) :]
    by_position = dict(zip(positions, grad_nodes, strict=True))
    nothing = torch.zeros(0)
    return Recorded(
        inputs=inputs,
        grad_outputs=tuple(
            by_position.get(p) or builder.named(f"_{_grad_name(p, ran.output_names)}", nothing)
            for p in range(len(ran.own_outputs))
        ),
        gradients={names[k]: None if g.shape == (0,) else g for k, g in zip(wanted, gradients, strict=True)},
        saved=tuple((n, None if p is None else values[p]) for n, p in ran.saved),
        attributes={**ran.attributes, **{n: values[p] for n, p in ran.attribute_places.items()}},
        outputs={
            n: values[p] for n, p in zip(ran.output_names, ran.own_outputs, strict=True) if p is not None
        },
        names={values[p]: n for n, p in ran.locals.items()},
        constants={a.name: a.value for a in sample.arguments if not isinstance(a.value, Tensor)},
        materializes=ran.materializes,
        values=reader.values,
        operations=0,
    )


def _grad_name(position: int, names: list[str]) -> str:
    return "grad_output" if len(names) == 1 else f"grad_{names[position]}"


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
