"""GV106: backward must be linear in grad_output, at every magnitude."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gradverify.model import Finding
from gradverify.verifier.checks.random_signs import random_signs
from gradverify.verifier.checks.rounded_grad_output import rounded_to_16_bits
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import number
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.compare import SINGLE
from gradverify.verifier.numerics.diagnosis.cause import Cause
from gradverify.verifier.numerics.diagnosis.nonlinear import Mixture, cotangent_function
from gradverify.verifier.numerics.difference import EPSILON
from gradverify.verifier.numerics.jacobian import NumericalJacobian
from gradverify.verifier.numerics.own_rounding import gradient_round_off

MAGNITUDES = (6.0, 2.0**-20, 2.0**20)
"""Sizes of the grad_outputs tried: moderate (clamps), small (thresholds; a mean over many tokens sends such)
and large. The proof has these, too: what keeps it from closing is looked for here."""

LINEAR = 1e-6
"""Relative deviation that is no longer rounding, not even that of one step in float32."""

MOST_ROUNDINGS = 64.0
"""Roundings, of the coarsest dtype that goes into a backward, that may add up there."""

FEW_ROUNDINGS = 4.0
"""The same of an output of 16 bits whose inputs have more: so many as above would be half of a value."""


def nonlinearity(sample: Sample, analytical: Tensor, measured: NumericalJacobian) -> Finding | None:
    """Compare backward of mixed grad_outputs with the same mixture of its rows.

    `analytical` holds the rows for unit grad_outputs, M × N. Rows that are not finite are another check's.
    """
    problem, inputs = sample.problem, sample.inputs
    if not analytical.isfinite().all() or not analytical.numel():
        return None
    mixtures = []
    largest = min(torch.finfo(b.dtype).max for b in (*inputs.blocks, *problem.outputs.blocks))
    for offset, magnitude in enumerate(MAGNITUDES):
        u = random_signs(problem.outputs.size, sample.case.seed + offset) * magnitude
        if max(u.abs().max(), (u @ analytical).abs().max()) > largest:
            continue  # in float16 infinite by nature
        given = problem.outputs.unflatten(u)
        u = problem.outputs.flatten(given)  # as it is in the dtypes of the outputs
        result = problem.pull_back(problem.primals, given)
        if isinstance(result, Raised):
            return None
        mixtures.append((u, inputs.flatten(result.value)))
    rounding = roundings(sample)
    slope = _natural_slope(inputs.flatten(problem.primals), measured)
    round_off = rounding * (analytical.abs().max() + slope)
    same = len(mixtures) > 1 and torch.equal(mixtures[0][1], mixtures[1][1])
    for u, gradient in mixtures:
        mixed = u @ analytical
        share = max(LINEAR, rounding) * (u.abs() @ analytical.abs())
        excess = (gradient - mixed).abs() - share - round_off * u.abs().max()
        if (excess > 0).any() and not same:
            excess -= gradient_round_off(problem, problem.outputs.unflatten(u))
        if (excess > 0).any() or not gradient.isfinite().all():
            worst = int(excess.nan_to_num(torch.inf).argmax())
            name, cause = _cause(sample, worst, mixtures, measured.value)
            if cause is not None and cause.name == "grad-output-ones":
                return _acts_as_ones(sample, name)
            if same and gradient.any():
                return _ignores(sample, name)
            coarse = rounded_to_16_bits(sample, analytical, name)
            shown = (gradient[worst].item(), mixed[worst].item())
            return _rounds(sample, name, coarse, shown) if coarse else _not_linear(sample, name, shown, cause)
    return None


def roundings(sample: Sample) -> float:
    """What may add up in backward, relative: it gets what forward got, and a grad_output like each output."""
    own = (layout.rounding for layout in (sample.inputs, sample.problem.outputs))
    of_inputs, of_outputs = (r.max().item() if r.numel() else 0.0 for r in own)
    return max(MOST_ROUNDINGS * max(EPSILON, of_inputs, min(of_outputs, SINGLE)), FEW_ROUNDINGS * of_outputs)


def _natural_slope(x: Tensor, measured: NumericalJacobian) -> Tensor:
    """|f| / |x|: gradients far below its rounding are round-off, in which nothing is linear."""
    size = x.abs()[x != 0]
    typical = size.median() if size.numel() else torch.ones((), dtype=torch.float64)
    values = measured.centre.abs().nan_to_num(0.0, 0.0, 0.0)
    return values.max() / typical


def _cause(
    sample: Sample, worst: int, mixtures: list[tuple[Tensor, Tensor]], true: Tensor
) -> tuple[str, Cause | None]:
    """The input that shows it, and what stands in the place of grad_output, if that is known."""
    number_of = sample.inputs.block_of(worst)
    block = sample.inputs.blocks[number_of]
    own = slice(block.start, block.stop)
    cause = cotangent_function([Mixture(u, gradient[own]) for u, gradient in mixtures], true[:, own])
    return sample.problem.input_names[number_of], cause


def _ignores(sample: Sample, name: str) -> Finding:
    return sample.finding(
        "GV106",
        "backward ignores grad_output: the result is the same for every grad_output",
        hint="Multiply by grad_output: every returned gradient must be proportional to it.",
        input=name,
    )


def _acts_as_ones(sample: Sample, name: str) -> Finding:
    return replace(
        _ignores(sample, name),
        message="backward ignores grad_output: the result is the same for every grad_output, and equals the "
        "gradient of y.sum()",
        cause="grad-output-ones",
    )


def _rounds(sample: Sample, name: str, dtype: str, values: tuple[float, float]) -> Finding:
    got, expected = values
    off = abs(got - expected) / max(abs(expected), torch.finfo(torch.float64).tiny)
    return sample.finding(
        "GV106",
        f"backward rounds grad_output to {dtype}: for one that needs more digits the gradient of `{name}` is "
        f"off by {number(off)} of its value, for one that {dtype} holds it is not",
        hint=f"Something in backward is cast to {dtype}: keep the dtype of grad_output.",
        input=name,
    )


def _not_linear(sample: Sample, name: str, values: tuple[float, float], cause: Cause | None) -> Finding:
    got, expected = values
    found = sample.finding(
        "GV106",
        f"backward is not linear in grad_output: for a mixed grad_output the gradient of `{name}` is "
        f"{number(got)} where the sum of its parts is {number(expected)}",
        hint="A clamp, sign, threshold or norm of grad_output inside backward: the gradient must scale "
        "with it.",
        input=name,
    )
    if cause is None:
        return found
    return replace(
        found,
        cause=cause.name,
        hint=f"The gradient of `{name}` is what `{cause.law}` gives in place of grad_output (checked at "
        f"{len(MAGNITUDES)} grad_outputs of different size). Use grad_output itself: the gradient must scale "
        "with it.",
    )
