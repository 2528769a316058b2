"""GV202: the second derivative must not depend on which other inputs require grad."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import torch
from torch import Tensor

from gradverify.model import Finding, indexed
from gradverify.verifier.checks.random_signs import random_signs
from gradverify.verifier.checks.subject import Sample, first_line
from gradverify.verifier.checks.wording import number
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.problem import VjpProblem
from gradverify.verifier.numerics.round_off import gradient_spread
from gradverify.verifier.numerics.tolerance import KNOWN, SAFETY, Tolerance

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
    return sample.finding(
        "GV202",
        f"where only `{name}` requires grad, the second derivative of its gradient by `{entry}` is "
        f"{number(found[worst].item())}, not {number(wanted[worst].item())} as with all inputs",
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
    wrong = ~((found - wanted).abs() <= allowed)
    if wrong.any():
        noise = SAFETY * gradient_spread(alone, weights, wanted)
        allowed = allowed + noise.clamp_max(KNOWN * wanted.abs().max().item())
        wrong = ~((found - wanted).abs() <= allowed)
    return wrong
