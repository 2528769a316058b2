"""The automatic composite: forward itself, differentiated by torch.

Most forwards are written in ordinary torch operations. Called without autograd's wrapping, on inputs that
require grad, such a forward is a composite reference without further work. It is believed only where its
gradient agrees with the one that the numbers have verified: it can refine a verdict and never make one. A
forward that detaches, iterates to a fixed point, or replaces its gradient is found out by that.

What a confirmed composite settles: pairs of which the numbers are too noisy in part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils import _pytree

from gradverify.verifier import guard
from gradverify.verifier.checks.result import FirstOrder, Uncovered
from gradverify.verifier.checks.subject import Sample, called_with
from gradverify.verifier.checks.wording import blocks, part
from gradverify.verifier.guard import Raised, Returned
from gradverify.verifier.numerics.calling import copies, returned_tensors, substitute
from gradverify.verifier.numerics.compare import Comparison
from gradverify.verifier.numerics.jacobian import analytical_jacobian
from gradverify.verifier.numerics.probes import random_signs
from gradverify.verifier.numerics.problem import Block, CallProblem, Layout, VjpProblem
from gradverify.verifier.numerics.round_off import ROUND_OFF, gradient_spread
from gradverify.verifier.numerics.tolerance import EPSILON, SAFETY, distance
from gradverify.verifier.numerics.tracing import functional_graph, without_cuts
from gradverify.verifier.numerics.verdict import Judged

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


def confirmed_composite(sample: Sample, first: FirstOrder) -> Composite | NoComposite:
    """A composite whose gradient agrees with a backward that the numbers have verified at this point."""
    if not first.verified or first.single_precision:
        return NoComposite("the first derivative is not verified")
    composite = composite_of(sample)
    if isinstance(composite, NoComposite):
        return composite
    for u in one_output_each(sample):
        pair = gradients_of(sample, composite, u)
        if pair is None:
            return NoComposite("it cannot be differentiated")
        if pair.off_by(sample.subject.settings.rtol).any():
            return NoComposite("its gradient is not the one that was verified")
    return composite


def one_output_each(sample: Sample) -> list[tuple[Tensor | None, ...]]:
    """Random grad_outputs, of one output at a time; the others stay undefined."""
    outputs = sample.problem.outputs
    u = outputs.unflatten(random_signs(outputs.size, sample.case.seed + 41))
    return [tuple(t if k == alone else None for k, t in enumerate(u)) for alone in range(len(u))]


@dataclass(frozen=True)
class TwoGradients:
    """The target's gradient and the composite's for one grad_output, N entries each."""

    u: tuple[Tensor | None, ...]
    mine: Tensor
    theirs: Tensor
    noise: Tensor
    """The rounding of both together."""

    def off_by(self, rtol: float) -> Tensor:
        """Where they differ by more than a share of the value, and than rounding explains (bool, N)."""
        finite = self.theirs.abs()[self.theirs.isfinite()]
        median = finite.median() if finite.numel() else torch.zeros((), dtype=torch.float64)
        allowed = torch.maximum(rtol * (self.theirs.abs() + median), SAFETY * self.noise)
        return ~(distance(self.mine, self.theirs) <= allowed)


def gradients_of(sample: Sample, composite: Composite, u: tuple[Tensor | None, ...]) -> TwoGradients | None:
    """Both gradients, zero at coordinates that are held; None where one of them cannot be had."""
    free, found, noise = ~held_columns(sample), [], torch.zeros(sample.inputs.size, dtype=torch.float64)
    for problem in (sample.problem, composite.problem):
        result = problem.pull_back(problem.primals, u)
        if isinstance(result, Raised):
            return None
        found.append(sample.inputs.flatten(result.value))
        noise = noise + gradient_spread(problem, u, found[-1])
    return TwoGradients(u, found[0] * free, found[1] * free, noise)


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


NEAR = 1e-9
"""Relative room for a composite beside the measured bounds: far below any tolerance, far above rounding."""

_Unknown = dict[tuple[int, str], Uncovered]


def settled(sample: Sample, first: FirstOrder) -> tuple[FirstOrder, Composite | NoComposite]:
    """The first order without what a confirmed composite settles; and the composite, where there is one."""
    composite = confirmed_composite(sample, first)
    if isinstance(composite, NoComposite):
        return first, composite
    return settled_first_order(sample, composite, first), composite


def settled_first_order(sample: Sample, composite: Composite, first: FirstOrder) -> FirstOrder:
    """The first order without the pairs of which a part was too noisy, where a composite settles that part.

    Its Jacobian must be the measured one wherever that is known, in a pair that is known in part. A jump or
    a kink is no noise: there it is not known.
    """
    comparison, measured = first.comparison, first.measured
    if not first.result.uncovered or comparison is None or measured is None:
        return first
    if comparison.analytical.shape != (sample.problem.outputs.size, sample.inputs.size):
        return first  # rows of a Jacobian too large to build
    claimed = analytical_jacobian(composite.problem)
    if isinstance(claimed, Raised) or not _is_measured(claimed.value, comparison):
        return first
    theirs = claimed.value
    scale = theirs.abs() + theirs.abs().median(dim=1, keepdim=True).values
    agree = (comparison.analytical - theirs).abs() <= sample.subject.settings.rtol * scale
    agree &= measured.error.isfinite() & ~comparison.kinks
    in_part = _known(comparison) & (theirs != 0)
    positions, names = sample.problem.output_positions, sample.problem.input_names
    keys = (
        ((positions[o], names[i]), output, source)
        for o, output, i, source in blocks(sample.problem.outputs, sample.inputs)
        if part(in_part, output, source).any()
    )
    left = _unsettled(first.result.uncovered, keys, agree)
    return replace(first, result=replace(first.result, uncovered=left))


def settled_second_order(
    sample: Sample,
    composite: Composite | NoComposite,
    second: VjpProblem,
    judged: Judged,
    uncovered: _Unknown,
) -> _Unknown:
    """The pairs that stay unknown: not those on which backward and a composite agree.

    The composite's second derivative must be the measured one wherever that is known, and it must be known
    somewhere that is not in `u` alone.
    """
    if not uncovered or isinstance(composite, NoComposite):
        return uncovered
    layout = Layout.of(second.primals)
    if judged.comparison.analytical.shape != (second.outputs.size, layout.size):
        return uncovered  # rows of a Jacobian too large to build
    other = VjpProblem(composite.problem, second.cotangents)
    theirs = analytical_jacobian(other)
    by_inputs = Layout.of(second.first_order.primals).size
    if isinstance(theirs, Raised) or not _known(judged.comparison)[:, :by_inputs].any():
        return uncovered
    if not _is_measured(theirs.value, judged.comparison):
        return uncovered
    agree = _agreeing(sample, second, other, judged.comparison.analytical, theirs.value)
    keys = (
        ((o, f"second order, {second.input_names[i]}"), output, source)
        for o, output, i, source in blocks(second.outputs, layout)
    )
    return _unsettled(uncovered, keys, agree)


def _unsettled(
    uncovered: _Unknown, keys: Iterable[tuple[tuple[int, str], Block, Block]], agree: Tensor
) -> _Unknown:
    """What is left of unknown pairs without those whose unknown entries all agree (bool, M × N)."""
    settled = {
        key
        for key, output, source in keys
        if key in uncovered and bool((part(agree, output, source) | ~uncovered[key].mask).all())
    }
    return {key: unknown for key, unknown in uncovered.items() if key not in settled}


def _known(comparison: Comparison) -> Tensor:
    return comparison.covered & ~comparison.kinks & ~comparison.wrong


def _is_measured(theirs: Tensor, comparison: Comparison) -> bool:
    """Whether a Jacobian is the measured one at every covered entry."""
    near = (theirs - comparison.numerical).abs() <= comparison.bound + NEAR * theirs.abs()
    return bool(near[_known(comparison)].all())


def _agreeing(sample: Sample, second: VjpProblem, other: VjpProblem, mine: Tensor, theirs: Tensor) -> Tensor:
    """Where two second derivatives are the same to within tolerance and rounding (bool, M × N)."""
    w = second.outputs.unflatten(random_signs(second.outputs.size, sample.case.seed + 43))
    layout = Layout.of(second.primals)
    noise = torch.zeros(layout.size, dtype=torch.float64)
    for problem in (second, other):
        base = problem.pull_back(problem.primals, w)
        if isinstance(base, Raised):
            return torch.zeros_like(theirs, dtype=torch.bool)
        noise = noise + gradient_spread(problem, w, layout.flatten(base.value))
    size = theirs.abs()
    noise = torch.minimum(noise, ROUND_OFF * size.max())
    allowed = sample.subject.settings.rtol * (size + size.median(dim=1, keepdim=True).values)
    return distance(mine, theirs) <= torch.maximum(allowed, SAFETY * noise[None, :])
