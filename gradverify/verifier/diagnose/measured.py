"""A sample as evidence for a diagnosis: both Jacobians, the sizes and the names of what took part."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gradverify.verifier.checks.jacobians import judged_jacobians
from gradverify.verifier.checks.kept import Kept
from gradverify.verifier.checks.reading import own_backward
from gradverify.verifier.checks.samples import placed_on
from gradverify.verifier.checks.second_order import second_order_problem
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.collect.discover import backward_name
from gradverify.verifier.diagnose.edits.own_backward import OwnBackward, Repairs
from gradverify.verifier.diagnose.evidence import OfRanks, Point
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.analytical import analytical_jacobian
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.problem import CallProblem, VjpProblem
from gradverify.verifier.numerics.round_off import gradient_noise
from gradverify.verifier.numerics.verdict import Judged
from gradverify.verifier.ranks.placement import columns_of_ranks


def with_primals(problem: CallProblem, primals: tuple[Tensor, ...]) -> CallProblem:
    """The same call with other values of its differentiable inputs."""
    values = iter(primals)
    arguments = tuple(replace(a, value=next(values)) if a.differentiable else a for a in problem.arguments)
    return replace(problem, arguments=arguments)


def measured_point(sample: Sample, repairs: Repairs) -> Point | None:
    """Both Jacobians of a sample; None where they cannot be judged.

    `repairs` is what is known of changes of the target's backward.
    """
    problem = sample.problem
    judged = judged_jacobians(sample, problem)
    if not isinstance(judged, Judged):
        return None
    names = tuple(_output_name(sample, p) for p in problem.output_positions)
    return replace(
        _point(sample, problem, judged, names),
        own_backward=own_backward_of(sample, repairs),
        of_ranks=_of_ranks(sample),
    )


def _of_ranks(sample: Sample) -> OfRanks | None:
    """What backward gives on each rank; None in one process, and where it cannot be had."""
    across, world = sample.subject.across, sample.case.world
    if across is None or world == 1:
        return None
    claimed = []
    for rank in range(world):
        with across.one_rank(rank):
            rows = analytical_jacobian(sample.problem)
        if isinstance(rows, Raised):
            return None
        claimed.append(rows.value)
    tensors = [a for a in sample.arguments if isinstance(a.value, Tensor)]
    columns = tuple(
        columns_of_ranks(placed.gradient, a.value.shape, world)
        for a, placed in zip(tensors, across.inputs, strict=True)
        if a.differentiable
    )
    outputs = [across.placed(p).gradient for p in sample.problem.output_positions]
    shapes = [block.shape for block in sample.problem.outputs.blocks]
    of_outputs = tuple(columns_of_ranks(p, s, world) for p, s in zip(outputs, shapes, strict=True))
    return OfRanks(tuple(claimed), columns, of_outputs)


def measured_second_point(sample: Sample) -> Point | None:
    """The same of a sample's backward as a map of inputs and grad_output, differentiated once more."""
    problem = second_order_problem(sample)
    judged = judged_jacobians(sample, problem, noise=gradient_noise(problem))
    if not isinstance(judged, Judged):
        return None
    names = tuple(f"g_{name}" for name in problem.first_order.input_names)
    return replace(_point(sample, problem, judged, names), order=2)


def _point(
    sample: Sample, problem: CallProblem | VjpProblem, judged: Judged, output_names: tuple[str, ...]
) -> Point:
    comparison = judged.comparison
    at_kink = judged.measured.kink > 0
    return Point(
        claimed=comparison.analytical,
        true=comparison.numerical,
        bound=torch.where(at_kink, torch.inf, comparison.bound),
        inputs=judged.inputs,
        outputs=judged.outputs,
        x=judged.inputs.flatten(problem.primals),
        y=judged.measured.centre,
        input_names=problem.input_names,
        output_names=output_names,
        flat=judged.measured.flat,
        shapes=_shapes(sample),
        scalars=_scalars(sample),
        constants=_constants(sample),
        forward=lambda x: _value_at(problem, x),
    )


def _value_at(problem: CallProblem | VjpProblem, x: Tensor) -> Tensor | None:
    result = problem.evaluate(Layout.of(problem.primals).unflatten(x))
    return None if isinstance(result, Raised) else problem.outputs.flatten(result.value)


def _scalars(sample: Sample) -> tuple[tuple[str, float], ...]:
    values = ((a.name, a.value) for a in sample.arguments if type(a.value) in {int, float})
    return tuple((name, float(value)) for name, value in values)


def _constants(sample: Sample) -> tuple[tuple[str, Tensor], ...]:
    """Dense real tensors that are not differentiated."""
    tensors = [(a.name, a.value) for a in sample.arguments if not a.differentiable]
    return tuple(
        (name, value.detach().to("cpu", torch.float64))
        for name, value in tensors
        if isinstance(value, Tensor) and value.layout is torch.strided and not value.is_complex()
    )


def repairs_of(kept: Kept) -> Repairs:
    """What is known of changes of a target's backward, and how many calls they may take."""
    if kept.repairs is None:
        kept.repairs = Repairs(kept.allowance)
    return kept.repairs


def own_backward_of(sample: Sample, repairs: Repairs) -> OwnBackward | None:
    """What runs changes of its backward; None for what is no Function.

    On the CPU, wherever the gradient is wrong: on a device, an index out of bounds would end the process.
    """
    function = sample.subject.function_class
    if function is None:
        return None
    if sample.subject.settings.device != "cpu":
        placed = placed_on("cpu", sample)
        if isinstance(placed, Raised):
            return None
        sample = placed.value
    return OwnBackward(sample.problem, function, backward_name(function), own_backward(function), repairs)


def _output_name(sample: Sample, position: int) -> str:
    number = str(position) if sample.outputs_returned > 1 else ""
    is_taken = f"y{number}" in {argument.name for argument in sample.arguments}
    return f"{'output' if is_taken else 'y'}{number}"


def _shapes(sample: Sample) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Every tensor of the call with its shape, the outputs last."""
    given = [(a.name, tuple(a.value.shape)) for a in sample.arguments if isinstance(a.value, Tensor)]
    problem = sample.problem
    returned = [
        (_output_name(sample, position), block.shape[:-1] if block.is_complex else block.shape)
        for position, block in zip(problem.output_positions, problem.outputs.blocks, strict=True)
    ]
    return (*given, *returned)
