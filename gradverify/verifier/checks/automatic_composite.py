"""The automatic composite: forward itself, differentiated by torch.

Most forwards are written in ordinary torch operations. Called without autograd's wrapping, on inputs that
require grad, such a forward is a composite reference that nobody had to write. It is believed only where its
gradient agrees with the one that the numbers have verified: it can sharpen a verdict and never make one. A
forward that detaches, iterates to a fixed point, or replaces its gradient is found out by that.
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
from gradverify.verifier.checks.gradient_spread import ROUND_OFF_SAFETY, gradient_spread
from gradverify.verifier.checks.random_signs import random_signs
from gradverify.verifier.checks.result import FirstOrder
from gradverify.verifier.checks.subject import Sample, reference_problem
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.calling import copies, substitute
from gradverify.verifier.numerics.difference import EPSILON
from gradverify.verifier.numerics.problem import CallProblem
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


def confirmed_composite(sample: Sample, first: FirstOrder) -> Composite | NoComposite:
    """A composite whose gradient agrees with a backward that the numbers have verified at this point."""
    if not first.verified or first.single_precision:
        return NoComposite("the first derivative is not verified")
    composite = composite_of(sample)
    if isinstance(composite, NoComposite):
        return composite
    rtol = sample.subject.settings.rtol
    for u in one_output_each(sample):
        pair = gradients_of(sample, composite, u)
        if pair is None:
            return NoComposite("it cannot be differentiated")
        mine, theirs, noise = pair
        allowed = torch.maximum(rtol * (theirs.abs() + median_size(theirs)), ROUND_OFF_SAFETY * noise)
        if not ((mine - theirs).abs() <= allowed).all():
            return NoComposite("its gradient is not the one that was verified")
    return composite


def one_output_each(sample: Sample) -> list[tuple[Tensor | None, ...]]:
    """Random grad_outputs, of one output at a time; the others stay undefined."""
    outputs = sample.problem.outputs
    u = outputs.unflatten(random_signs(outputs.size, sample.case.seed + 41))
    return [tuple(t if k == alone else None for k, t in enumerate(u)) for alone in range(len(u))]


def gradients_of(
    sample: Sample, composite: Composite, u: Sequence[Tensor | None]
) -> tuple[Tensor, Tensor, Tensor] | None:
    """The target's gradient, the composite's, and the rounding of both together: N entries each."""
    inputs, mine, theirs = sample.inputs, sample.problem, composite.problem
    a, b = mine.pull_back(mine.primals, u), theirs.pull_back(theirs.primals, u)
    if isinstance(a, Raised) or isinstance(b, Raised):
        return None
    x, y = inputs.flatten(a.value), inputs.flatten(b.value)
    noise = gradient_spread(mine, tuple(u), x) + gradient_spread(theirs, tuple(u), y)
    free = ~held_columns(sample)
    return x * free, y * free, noise


def held_columns(sample: Sample) -> Tensor:
    """Coordinates that are constants by the spec (bool, N)."""
    parts = [
        torch.zeros(a.value.shape, dtype=torch.bool) if a.held is None else a.held.cpu()
        for a in sample.arguments
        if a.differentiable
    ]
    blocks = sample.inputs.blocks
    flat = [
        (p.reshape(-1, 1).expand(-1, 2) if b.is_complex else p).reshape(-1)
        for p, b in zip(parts, blocks, strict=True)
    ]
    return torch.cat(flat) if flat else torch.zeros(0, dtype=torch.bool)


def median_size(values: Tensor) -> Tensor:
    """Median magnitude of the finite values; zero where there are none."""
    finite = values.abs()[values.isfinite()]
    return finite.median() if finite.numel() else torch.zeros((), dtype=torch.float64)


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
