"""First and second order as problems, and what to say where they are wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradverify.api.given import DOUBLE, as_tuple, is_differentiable
from gradverify.api.options import Options
from gradverify.api.original import Original
from gradverify.api.own_graph import OwnGraph
from gradverify.api.telling import target_of
from gradverify.model import Case, Finding, Outcome, Point, Settings, Severity
from gradverify.verifier import guard
from gradverify.verifier.checks.linearity import nonlinearity
from gradverify.verifier.checks.mismatch import describe_block
from gradverify.verifier.checks.result import CheckResult, FirstOrder
from gradverify.verifier.checks.second_order import compare_second_order, refusal
from gradverify.verifier.checks.subject import Sample, Subject, first_line
from gradverify.verifier.checks.wording import blocks, count_of, entries_of, number, part
from gradverify.verifier.guard import Raised
from gradverify.verifier.inputs.arguments import Argument
from gradverify.verifier.numerics.calling import differentiate, differentiate_with_graph, with_zeros
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.noise import TINIEST
from gradverify.verifier.numerics.problem import CallProblem, Problem, Tensors, VjpProblem
from gradverify.verifier.numerics.verdict import Judged


def first_order_problem(
    function: Callable[..., Any], original: Original, states: guard.RandomStates
) -> CallProblem:
    """The function at the caller's inputs, as a map of fresh tensors."""
    return CallProblem(
        function=function,
        arguments=arguments_of(original.inputs),
        output_positions=original.positions,
        outputs=Layout.of(original.outputs),
        random_states=states,
    )


def arguments_of(inputs: Sequence[Any], names: Sequence[str] = ()) -> tuple[Argument, ...]:
    """The caller's inputs, named by position where they have no names."""
    return tuple(
        Argument(
            names[i] if i < len(names) else f"inputs[{i}]",
            x.detach() if isinstance(x, Tensor) else x,
            differentiable=is_differentiable(x),
        )
        for i, x in enumerate(inputs)
    )


def first_order_findings(
    function: Callable[..., Any], options: Options, problem: Problem, judged: Judged
) -> tuple[Finding, ...]:
    """A finding for every wrong (output, input) block."""
    assert isinstance(problem, CallProblem)  # noqa: S101 - `first_order_problem` made it
    sample = sample_of(function, options, problem)
    if judged.inputs.size == sample.inputs.size and judged.comparison.wrong.any():
        nonlinear = nonlinearity(sample, judged.comparison.analytical, judged.measured)
        if nonlinear is not None:
            return (nonlinear,)
    names, positions = problem.input_names, problem.output_positions
    found = (
        describe_block(sample, judged.comparison, positions[o], output, names[i], source)
        for o, output, i, source in blocks(judged.outputs, judged.inputs)
    )
    return tuple(f for f in found if f is not None)


def sample_of(function: Callable[..., Any], options: Options, problem: CallProblem) -> Sample:
    """What the checks of the command start from, for a function without a spec."""
    settings = Settings(rtol=options.rtol, atol=options.atol)
    returned = max(problem.output_positions, default=0) + 1
    subject = Subject(target_of(function), function, settings)
    return Sample(subject, Case("", 0), Point.TYPICAL, 0, problem.arguments, problem, returned)


def gradient_function(
    function: Callable[..., Any], inputs: Sequence[Any], grad_outputs: Sequence[Tensor]
) -> Callable[..., tuple[Tensor | None, ...]]:
    """(inputs…, grad_outputs…) -> the gradient of every input that requires grad, with its graph.

    None where the outputs do not depend on an input.
    """
    count = len(grad_outputs)
    by_input = [is_differentiable(x) for x in inputs]
    by_grad_output = [u.requires_grad for u in grad_outputs]

    def gradients(*arguments: Any) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        given = _requiring(arguments[:-count], by_input)
        u = _requiring(arguments[-count:], by_grad_output)
        return gradients_of(as_tuple(function(*given)), given, u)

    return gradients


def gradients_of(
    returned: Sequence[Any], inputs: Sequence[Any], grad_outputs: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """The gradient of every input that requires grad, with its graph, from what the function returned."""
    outputs = [o for o in returned if is_differentiable(o)]
    leaves = [x for x in inputs if is_differentiable(x)]
    if not outputs or len(outputs) != len(grad_outputs):  # torch knows what to say of that
        return torch.autograd.grad(outputs, leaves, grad_outputs, create_graph=True, allow_unused=True)
    return differentiate_with_graph(outputs, leaves, grad_outputs)


def _requiring(values: Sequence[Any], wanted: Sequence[bool]) -> list[Any]:
    return [v.requires_grad_() if w else v for v, w in zip(values, wanted, strict=True)]


def watched(function: Any) -> Any:  # noqa: ANN401 - user code
    """The function with grad mode on and arguments that require grad: it may differentiate inside."""

    def call(*arguments: Any) -> Any:  # noqa: ANN401
        with torch.enable_grad():
            return function(*(_requiring_if_inexact(a) for a in arguments))

    return call


def _requiring_if_inexact(argument: Any) -> Any:  # noqa: ANN401
    plain = isinstance(argument, Tensor) and not argument.requires_grad
    inexact = plain and (argument.is_floating_point() or argument.is_complex())
    return argument.requires_grad_().clone() if inexact else argument


def first_order_graph(function: Callable[..., Any], original: Original) -> OwnGraph:
    """The call's own graph, and forward elsewhere."""
    return _graph(function, original, original.positions, original.outputs)


def graph_of_constants(function: Callable[..., Any], original: Original) -> OwnGraph | None:
    """The same for a call of whose outputs none requires grad; None where some are no float64 tensors."""
    returned = [(i, r) for i, r in enumerate(original.returned) if r is not None]
    if not returned or not all(
        isinstance(r, Tensor) and r.layout is torch.strided and r.dtype in DOUBLE for _, r in returned
    ):
        return None
    return _graph(function, original, tuple(i for i, _ in returned), tuple(r for _, r in returned))


def _graph(
    function: Callable[..., Any], original: Original, positions: tuple[int, ...], outputs: Tensors
) -> OwnGraph:
    inputs = original.inputs
    all_move = len(original.leaves) == len(inputs)
    all_count = len(positions) == len(original.returned)
    shapes = [output.shape for output in outputs]

    def evaluate(moved: Sequence[Tensor]) -> Tensors:
        returned = as_tuple(function(*(moved if all_move else with_values(moved, inputs))))
        values = returned if all_count else tuple([returned[p] for p in positions])
        if [value.shape for value in values] != shapes:
            raise ValueError("forward returns other shapes than before")
        return values

    return OwnGraph(original, Layout.of(outputs), outputs, range(len(positions)), evaluate)


def with_values(moved: Sequence[Tensor], inputs: Sequence[Any]) -> Sequence[Any]:
    """Other values for the inputs that require grad, and copies of the rest."""
    if len(moved) == len(inputs):
        return moved
    values = iter(moved)
    return [
        next(values) if is_differentiable(x) else x.detach().clone() if isinstance(x, Tensor) else x
        for x in inputs
    ]


def second_order_graph(
    function: Callable[..., Any],
    returned: tuple[Any, ...],
    grad_outputs: tuple[Tensor, ...],
    original: Original,
) -> OwnGraph:
    """The gradients' own graph, and the gradients elsewhere, without their graph."""
    inputs = original.inputs[: -len(grad_outputs)]
    if not all(u.requires_grad for u in grad_outputs):
        return first_order_graph(watched(gradient_function(function, inputs, grad_outputs)), original)
    positions = [i for i, r in enumerate(returned) if is_differentiable(r)]
    count = len(original.leaves) - len(grad_outputs)

    # What took the caller's own leaves writes into none: it takes others as they are, without a copy.
    takes_leaves = all(x.is_leaf for x in original.leaves[:count])

    def evaluate(moved: Sequence[Tensor]) -> Tensors:
        leaves, u = moved[:count], moved[count:]
        with torch.enable_grad():
            given = [
                leaf.requires_grad_() if takes_leaves else leaf.requires_grad_().clone() for leaf in leaves
            ]
            outputs = as_tuple(function(*with_values(given, inputs)))
        return with_zeros(differentiate([outputs[p] for p in positions], leaves, u), leaves)

    outputs = Layout.of(original.leaves[:count])
    return OwnGraph(original, outputs, original.returned, original.positions, evaluate)


def second_order_problem(
    function: Callable[..., Any],
    returned: tuple[Any, ...],
    grad_outputs: tuple[Tensor, ...],
    states: guard.RandomStates,
    original: Original,
) -> VjpProblem | CallProblem:
    """The gradients as a map of inputs and grad_outputs; of only those grad_outputs that require grad.

    `returned` is what the function itself returns, `original` the call of its gradients.
    """
    inputs = original.inputs[: -len(grad_outputs)]
    if not all(u.requires_grad for u in grad_outputs):
        return first_order_problem(
            watched(gradient_function(function, inputs, grad_outputs)), original, states
        )
    positions = tuple(i for i, r in enumerate(returned) if is_differentiable(r))
    first = CallProblem(
        function=function,
        arguments=arguments_of(inputs),
        output_positions=positions,
        outputs=Layout.of([returned[p] for p in positions]),
        random_states=states,
    )
    return VjpProblem(first, tuple(u.detach() for u in grad_outputs))


def second_order_findings(
    function: Callable[..., Any], options: Options, problem: Problem, judged: Judged
) -> tuple[Finding, ...]:
    """A finding for every wrong block of the second derivative."""
    if not isinstance(problem, VjpProblem):
        return first_order_findings(function, options, problem, judged)
    sample = sample_of(function, options, problem.first_order)
    graph = problem.graph(problem.primals)
    refused = None if isinstance(graph, Raised) else refusal(graph.value)
    if refused is not None:
        said = f"the second derivative raises {refused.type}: {first_line(refused.message)}"
        return (sample.finding("GV203", said, severity=Severity.ERROR, raised=refused),)
    nothing = FirstOrder(CheckResult(outcome=Outcome.PASSED))
    if judged.comparison.wrong.any() or judged.comparison.nonfinite.any():
        return compare_second_order(sample, problem, judged, nothing).findings
    return _slightly_off(sample, problem, judged)


def _slightly_off(sample: Sample, second: VjpProblem, judged: Judged) -> tuple[Finding, ...]:
    """A warning for every block that is off by less than the tolerance, and more than rounding explains."""
    names, comparison, found = second.input_names, judged.comparison, []
    for o, output, i, source in blocks(judged.outputs, judged.inputs):
        mask = part(comparison.imprecise, output, source)
        if not mask.any():
            continue
        actual, expected, bound = (
            part(m, output, source) for m in (comparison.analytical, comparison.numerical, comparison.bound)
        )
        entries = entries_of(actual, expected, bound, mask, output, source)
        relative = (actual - expected).abs() / expected.abs().clamp_min(TINIEST)
        said = (
            f"the second derivative (gradient of `{names[o]}` by `{names[i]}`) is slightly off at "
            f"{count_of(entries.wrong, entries.checked)}: by up to {number(relative[mask].max().item())} of "
            "its value, within the tolerance, but more than rounding explains"
        )
        warning = Severity.WARNING
        found.append(
            sample.finding("GV110", said, input=names[i], output=o, entries=entries, severity=warning)
        )
    return tuple(found)
