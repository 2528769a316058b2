"""What forward runs, what it saves, and the gradient torch derives from it, recorded at one point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.fx import GraphModule, Interpreter
from torch.fx.node import Node as FxNode
from torch.utils import _pytree

from gradverify.verifier.checks.random_signs import random_signs
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.collect.forward_itself import run_watched
from gradverify.verifier.collect.operators import Operator
from gradverify.verifier.numerics.calling import copies, returned_tensors, substitute
from gradverify.verifier.numerics.operations import MOST_OPERATIONS
from gradverify.verifier.numerics.tracing import NoMemoryError, functional_graph, recorded_graph, without_cuts
from gradverify.verifier.suggest.graph import Builder, Node, decompositions

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
    cotangents = outputs.unflatten(random_signs(outputs.size, sample.case.seed + 47))
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
