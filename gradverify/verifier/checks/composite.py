"""The automatic composite: forward itself, differentiated by torch.

Most forwards are written in ordinary torch operations. Called without autograd's wrapping, on inputs that
require grad, such a forward is a composite reference without further work. It is believed only where its
gradient agrees with the one that the numbers have verified: it can refine a verdict and never make one. A
forward that detaches, iterates to a fixed point, or replaces its gradient is found out by that.

What a confirmed composite settles: pairs of which the numbers are too noisy in part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils import _pytree

from gradverify.verifier import guard
from gradverify.verifier.checks.subject import Sample, called_with
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.calling import copies, returned_tensors, substitute
from gradverify.verifier.numerics.problem import CallProblem, Layout
from gradverify.verifier.numerics.tolerance import EPSILON
from gradverify.verifier.numerics.tracing import functional_graph, without_cuts

SAME_VALUES = 64 * EPSILON
"""Relative difference between the outputs of a forward and of its composite that is rounding."""


@dataclass(frozen=True)
class Composite:
    """A map with the target's values whose gradient torch derives."""

    problem: CallProblem
    """Over the same inputs and outputs as the target's."""
    source: str
    """Where it comes from, in words: `the reference`, `forward itself`."""


@dataclass(frozen=True)
class NoComposite:
    """Why there is none, as the end of a sentence."""

    reason: str


def automatic_composite(sample: Sample) -> Composite | NoComposite:
    """Forward itself as a composite over the same inputs; nothing is known yet of its gradient.

    Where running it leaves no whole graph (in-place on saved values, `.data`, `no_grad`), the operations
    that it runs are recorded and differentiated instead.
    """
    forward = sample.subject.own_forward
    if forward is None:
        return NoComposite("it is not a Function with a forward of its own")
    eager = _usable(sample, forward)
    if isinstance(eager, Composite):
        return eager
    recorded = guard.call(recorded_forward, sample.problem, forward)
    if isinstance(recorded, Raised):
        return eager
    again = _usable(sample, of_tensors(recorded.value))
    return again if isinstance(again, Composite) else eager


def composite_of(sample: Sample) -> Composite | NoComposite:
    """The reference that the spec names; forward itself where it names none."""
    subject = sample.subject
    if subject.reference is None:
        return automatic_composite(sample)
    built = reference_problem(sample, subject.reference, subject.reference_arguments)
    if isinstance(built, Raised):
        return NoComposite(f"the reference raised {built.error.type}")
    if built.value.outputs != sample.problem.outputs:
        return NoComposite("the reference has not all outputs of forward")
    return Composite(built.value, "the reference")


def reference_problem(
    sample: Sample, function: Callable[..., Any], names: Sequence[str] = ()
) -> Returned[CallProblem] | Raised:
    """The composite reference as a problem over the same inputs, its outputs matched by position.

    `names` are the arguments it is called with, in order; empty: positionally with what forward got.
    """
    if names:
        function = called_with(function, [sample.position_of(name) for name in names])
    arguments = sample.arguments
    sample.problem.random_states.replay()
    leaves = [p.detach().clone().requires_grad_() for p in sample.problem.primals]
    with torch.enable_grad():
        result = guard.call(function, *substitute(arguments, [leaf.clone() for leaf in leaves]))
    if isinstance(result, Raised):
        return result
    returned = returned_tensors(result.value)
    positions = tuple(
        p for p in sample.problem.output_positions if p < len(returned) and isinstance(returned[p], Tensor)
    )
    return Returned(
        CallProblem(
            function=function,
            arguments=arguments,
            output_positions=positions,
            outputs=Layout.of([returned[p] for p in positions]),
            random_states=sample.problem.random_states,
        )
    )


def held_columns(sample: Sample) -> Tensor:
    """Coordinates that are constants by the spec (bool, N)."""
    arguments = (a for a in sample.arguments if a.differentiable)
    flat = []
    for argument, block in zip(arguments, sample.inputs.blocks, strict=True):
        shape = argument.value.shape
        held = torch.zeros(shape, dtype=torch.bool) if argument.held is None else argument.held.cpu()
        flat.append(held.reshape(-1).repeat_interleave(2 if block.is_complex else 1))
    return torch.cat(flat) if flat else torch.zeros(0, dtype=torch.bool)


def _usable(sample: Sample, function: Callable[..., Any]) -> Composite | NoComposite:
    """A composite, if it gives the target's values with a graph to every output that is differentiated."""
    problem = replace(sample.problem, function=function)
    graph = problem.graph(problem.primals)
    if isinstance(graph, Raised):
        return NoComposite(f"forward raises {graph.error.type} without autograd's wrapping")
    if not all(output.requires_grad for output in graph.value.outputs):
        return NoComposite("forward leaves no graph: detach, no_grad, NumPy or a kernel")
    values = sample.problem.evaluate(sample.problem.primals)
    if isinstance(values, Raised):
        return NoComposite(f"forward raised {values.error.type}")
    mine = problem.outputs.flatten(values.value)
    if not torch.allclose(
        problem.outputs.flatten(graph.value.outputs), mine, rtol=SAME_VALUES, atol=0.0, equal_nan=True
    ):
        return NoComposite("forward gives other values without autograd's wrapping")
    ones = [torch.ones_like(output) for output in graph.value.outputs]
    back = problem.back(graph.value, ones)
    if isinstance(back, Raised):
        return NoComposite(f"torch cannot differentiate forward: {back.error.type}")
    return Composite(problem, "forward itself")


def recorded_forward(problem: CallProblem, forward: Callable[..., Any]) -> GraphModule:
    """The operations that forward runs at a problem's inputs, as a graph of its tensor arguments.

    Raises whatever forward raises, and for operations that cannot be recorded.
    """
    arguments = substitute(problem.arguments, copies(problem.primals))
    leaves, structure = _pytree.tree_flatten(arguments)
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def run(*tensors: Tensor) -> Any:  # noqa: ANN401 - what user code returned
        values = dict(zip(places, tensors, strict=True))
        filled = [values.get(k, leaf) for k, leaf in enumerate(leaves)]
        return forward(*_pytree.tree_unflatten(filled, structure))

    problem.random_states.replay()
    with torch.no_grad():
        return without_cuts(functional_graph(run, [leaves[k].detach().clone() for k in places]))


def of_tensors(graph: Callable[..., Any]) -> Callable[..., Any]:
    """A graph of tensors as a function of all arguments: it takes the tensors among them."""

    def run(*arguments: Any) -> Any:  # noqa: ANN401
        return graph(*(leaf for leaf in _pytree.tree_leaves(list(arguments)) if isinstance(leaf, Tensor)))

    return run
