"""Second order: is the double backward right, silently detached, or refused clearly (GV201 to GV203).

GV202: the second derivative must not depend on which other inputs require grad.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch
from torch import Tensor

from gradverify.model import Finding, Outcome, RaisedError, indexed
from gradverify.verifier import guard
from gradverify.verifier.checks.first_order import (
    backward_raised,
)
from gradverify.verifier.checks.reading import own_backward
from gradverify.verifier.checks.result import (
    CheckResult,
)
from gradverify.verifier.checks.second_order_messages import (
    cut_by_kernel,
)
from gradverify.verifier.checks.subject import Sample, first_line
from gradverify.verifier.checks.wording import apart
from gradverify.verifier.collect.discover import compiled_calls
from gradverify.verifier.engine import run_every_node
from gradverify.verifier.guard import Raised
from gradverify.verifier.interpreter.launches import launches
from gradverify.verifier.numerics.probes import random_signs
from gradverify.verifier.numerics.problem import Graph, Layout, VjpProblem
from gradverify.verifier.numerics.tolerance import EPSILON, KNOWN, Tolerance, distance
from gradverify.verifier.witnesses.rounding import FACTOR, spread

MOST_INPUTS = 4
"""So many inputs require grad alone."""

HINT = (
    "With all inputs it is right. Is something detached, or left out, where ctx.needs_input_grad says that "
    "another input needs no gradient?"
)


def wrong_alone(sample: Sample, second: VjpProblem, known: Collection[int]) -> Finding | None:
    """The first input whose second derivative is another one where it alone requires grad.

    `second` is verified with all inputs, for the gradients of `known` (positions); grad_output requires grad
    with either. Where the gradient itself is another one alone, GV406 says it.
    """
    differentiable = [k for k, a in enumerate(sample.arguments) if a.differentiable]
    free = all(sample.arguments[k].step is None and not sample.arguments[k].holds for k in differentiable)
    if len(differentiable) < 2 or not free:
        return None
    for number_of, place in enumerate(differentiable[:MOST_INPUTS]):
        found = _alone(sample, second, number_of, place) if number_of in known else None
        if found is not None:
            return found
    return None


def _alone(sample: Sample, second: VjpProblem, number_of: int, place: int) -> Finding | None:
    arguments = tuple(
        replace(a, differentiable=a.differentiable and k == place) for k, a in enumerate(sample.arguments)
    )
    alone = VjpProblem(replace(sample.problem, arguments=arguments), second.cotangents)
    layout = Layout.of(alone.primals)
    name = sample.problem.input_names[number_of]
    primal = sample.problem.primals[number_of]
    weights = Layout.of([primal]).unflatten(
        random_signs(Layout.of([primal]).size, sample.case.seed + 401 + number_of)
    )
    given = [None if k != number_of else weights[0] for k in range(len(sample.problem.primals))]
    usual, got = second.pull_back(second.primals, given), alone.pull_back(alone.primals, weights)
    if isinstance(usual, Raised):
        return None
    if isinstance(got, Raised):
        if got.error.deliberate or not _has_same_gradient(second, alone, number_of):
            return None
        said = f"the double backward raises {got.error.type} where only `{name}` requires grad"
        message = f"{said}: {first_line(got.error.message)}"
        return sample.finding("GV202", message, hint=HINT, input=name, raised=got.error)
    of_usual = (usual.value[number_of], *usual.value[len(sample.problem.primals) :])
    wanted, found = layout.flatten(of_usual), layout.flatten(got.value)
    wrong = _is_off(sample, alone, weights, found, wanted, layout)
    if not wrong.any() or not _has_same_gradient(second, alone, number_of):
        return None
    off = (found - wanted).abs().nan_to_num(torch.inf)
    worst = int(torch.where(wrong, off, -1.0).argmax())
    by = alone.input_names[layout.block_of(worst)]
    entry = indexed(by, layout.blocks[layout.block_of(worst)].index(worst))
    gives, due = apart(found[worst].item(), wanted[worst].item())
    return sample.finding(
        "GV202",
        f"where only `{name}` requires grad, the second derivative of its gradient by `{entry}` is {gives}, "
        f"not {due} as with all inputs",
        hint=HINT,
        input=by,
        output=number_of,
    )


def _has_same_gradient(second: VjpProblem, alone: VjpProblem, number_of: int) -> bool:
    """Whether the first derivative by an input is the same where that input alone requires grad."""
    usual = second.first_order.pull_back(second.first_order.primals, second.cotangents)
    got = alone.first_order.pull_back(alone.first_order.primals, alone.cotangents)
    if isinstance(usual, Raised) or isinstance(got, Raised):
        return False
    one, other = usual.value[number_of], got.value[0]
    if one is None or other is None:
        return False
    layout = Layout.of(alone.first_order.primals)
    return torch.allclose(layout.flatten([one]), layout.flatten([other]), equal_nan=True)


def _is_off(
    sample: Sample,
    alone: VjpProblem,
    weights: tuple[Tensor, ...],
    found: Tensor,
    wanted: Tensor,
    layout: Layout,
) -> Tensor:
    """Entries (bool) that differ by more than the tolerance, and than rounding moves them."""
    if torch.equal(found, wanted) or not wanted.isfinite().all():
        return torch.zeros_like(wanted, dtype=torch.bool)
    settings = sample.subject.settings
    allowed = Tolerance(settings.rtol, settings.atol).allowed(wanted[None], layout)[0]
    wrong = ~(distance(found, wanted) <= allowed)
    if wrong.any():
        inputs = Layout.of(alone.primals)

        def gradient(x: Tensor) -> Tensor | None:
            made = alone.pull_back(inputs.unflatten(x), weights)
            return None if isinstance(made, Raised) else layout.flatten(made.value)

        moved = spread(gradient, inputs.flatten(alone.primals), EPSILON)
        noise = torch.zeros_like(wanted) if moved is None else FACTOR * moved
        allowed = allowed + noise.clamp_max(KNOWN * wanted.abs().max().item())
        wrong = ~(distance(found, wanted) <= allowed)
    return wrong


ACCIDENTS = frozenset(
    {"NameError", "AttributeError", "IndexError", "KeyError", "UnboundLocalError", "AssertionError"}
)
"""Exceptions that are never raised to refuse a double backward."""


def second_order_problem(sample: Sample) -> VjpProblem:
    """The backward of a sample as a map of its own, at one grad_output of random signs."""
    problem = sample.problem
    u = problem.outputs.unflatten(random_signs(problem.outputs.size, sample.case.seed + 17))
    return VjpProblem(problem, u)


def graph_alone(sample: Sample) -> CheckResult:
    """Whether backward refuses to be differentiated, or a kernel cuts its graph: no number is measured."""
    found = _graph_of(sample, second_order_problem(sample))
    return found if isinstance(found, CheckResult) else CheckResult(outcome=Outcome.NOT_RUN)


def _graph_of(sample: Sample, second: VjpProblem) -> Graph | CheckResult:
    """The gradients with their graph; the result where there is nothing to measure."""
    before = launches()
    graph = second.graph(second.primals)
    if isinstance(graph, Raised):
        return _raised(sample, graph.error, "under create_graph=True")
    with second.around():
        refused = refusal(graph.value)
    if refused is not None:
        return _raised(sample, refused, "at the second differentiation")
    if _ran_kernels(sample, before) and not any(g.requires_grad for g in graph.value.outputs):
        cut = cut_by_kernel(sample)
        if cut is not None:
            return CheckResult((cut,), Outcome.NOT_RUN, capability="wrong")
    return graph.value


def _ran_kernels(sample: Sample, before: int) -> bool:
    """Whether kernels ran since `before`, a number of launches, or backward calls compiled ones."""
    function, operator = sample.subject.function_class, sample.subject.operator
    backward = own_backward(function) if function is not None else getattr(operator, "backward", None)
    return launches() > before or (backward is not None and bool(compiled_calls([backward])))


def refusal(graph: Graph) -> RaisedError | None:
    """What differentiating the gradients raises, None if it does not.

    `once_differentiable` raises only when the whole graph runs: `torch.autograd.grad` skips nodes that lead
    to no wanted input and returns None in silence.
    """
    connected = [g for g in graph.outputs if g.requires_grad]
    if not connected:
        return None
    ones = [torch.ones_like(g) for g in connected]

    result = guard.call(run_every_node, connected, ones)
    for leaf in graph.leaves:
        leaf.grad = None
    return result.error if isinstance(result, Raised) else None


def _raised(sample: Sample, error: RaisedError, when: str) -> CheckResult:
    if error.type in ACCIDENTS and not error.deliberate:
        finding = backward_raised(sample, error, f" {when}")
        return CheckResult((finding,), Outcome.FAILED, capability="no")
    is_marked = "once_differentiable" in error.message
    what = "an explicit error" if error.deliberate or is_marked else error.type
    finding = sample.finding(
        "GV203",
        f"the double backward raises {what} {when}: {first_line(error.message)}",
        raised=None if is_marked else error,
    )
    return CheckResult((finding,), Outcome.PASSED, capability="no")
