"""GV106: backward must be linear in grad_output, at every magnitude."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gradverify.model import Finding
from gradverify.verifier.checks.mismatch import is_float32
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import number
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.diagnosis.cause import Cause
from gradverify.verifier.numerics.diagnosis.nonlinear import Mixture, cotangent_function
from gradverify.verifier.numerics.difference import EPSILON
from gradverify.verifier.numerics.jacobian import NumericalJacobian

MAGNITUDES = (6.0, 2.0**-10, 2.0**20)
"""Sizes of the grad_outputs tried: moderate (clamps), small (thresholds) and large."""

LINEAR = 1e-6
"""Relative deviation that is no longer rounding, not even float32's."""


BLIND = 1e-10
"""Relative deviation of a gradient, of its largest entry: far above rounding in float64, far below that to
float32 (6e-8)."""


def nonlinearity(sample: Sample, analytical: Tensor, measured: NumericalJacobian) -> Finding | None:
    """Compare backward of mixed grad_outputs with the same mixture of its rows.

    `analytical` holds the rows for unit grad_outputs, M × N. Rows that are not finite are another check's.
    """
    problem, inputs = sample.problem, sample.inputs
    if not analytical.isfinite().all() or not analytical.numel():
        return None
    mixtures = []
    for offset, magnitude in enumerate(MAGNITUDES):
        u = random_signs(problem.outputs.size, sample.case.seed + offset) * magnitude
        result = problem.pull_back(problem.primals, problem.outputs.unflatten(u))
        if isinstance(result, Raised):
            return None
        mixtures.append((u, inputs.flatten(result.value)))
    round_off = (
        64 * EPSILON * (analytical.abs().max() + _natural_slope(inputs.flatten(problem.primals), measured))
    )
    for u, gradient in mixtures:
        mixed = u @ analytical
        excess = (gradient - mixed).abs() - LINEAR * (u.abs() @ analytical.abs()) - round_off * u.abs().max()
        if (excess > 0).any() or not gradient.isfinite().all():
            worst = int(excess.nan_to_num(torch.inf).argmax())
            name, cause = _cause(sample, worst, mixtures, measured.value)
            if cause is not None and cause.name == "grad-output-ones":
                return _acts_as_ones(sample, name)
            if torch.equal(mixtures[0][1], mixtures[1][1]) and gradient.any():
                return _ignores(sample, name)
            return _not_linear(sample, name, (gradient[worst].item(), mixed[worst].item()), cause)
    return None


def rounded_to_single(sample: Sample, analytical: Tensor) -> tuple[str, ...]:
    """Names of the inputs whose gradient has only float32's digits for grad_outputs that have more.

    The rows themselves need not show it: those of a sum are ones and zeros, which any precision holds, and so
    is every grad_output that a row is made with. Either what comes back has float32's digits, or it is the
    same, bit by bit, for a grad_output that was rounded to them.
    """
    problem, inputs = sample.problem, sample.inputs
    mixed, found, of_rounded = [], [], []
    for offset in range(len(MAGNITUDES)):
        u = random_signs(problem.outputs.size, sample.case.seed + offset)
        result = problem.pull_back(problem.primals, problem.outputs.unflatten(u))
        if isinstance(result, Raised):
            return ()
        mixed.append(u @ analytical)
        # Copied before backward runs again: it may return a buffer of its own.
        found.append(inputs.flatten(result.value))
        again = problem.pull_back(problem.primals, problem.outputs.unflatten(u.float().double()))
        if isinstance(again, Raised):
            return ()
        of_rounded.append(inputs.flatten(again.value))
    expected, values, rounded = torch.stack(mixed), torch.stack(found), torch.stack(of_rounded)
    parts = [slice(block.start, block.stop) for block in inputs.blocks]
    return tuple(
        name
        for name, own in zip(problem.input_names, parts, strict=True)
        if is_float32(values[:, own], expected[:, own])
        or (problem.outputs.is_double and _is_blind(values[:, own], rounded[:, own], expected[:, own]))
    )


def _is_blind(values: Tensor, of_rounded: Tensor, expected: Tensor) -> bool:
    """Whether gradients are those of rounded grad_outputs, bit for bit, and others than they should be."""
    off = (values - expected).abs() > BLIND * expected.abs().amax(dim=1, keepdim=True)
    return torch.equal(values, of_rounded) and bool(off.any(dim=1).all())


def _natural_slope(x: Tensor, measured: NumericalJacobian) -> Tensor:
    """|f| / |x|: gradients far below its rounding are round-off, in which nothing is linear."""
    size = x.abs()[x != 0]
    typical = size.median() if size.numel() else torch.ones((), dtype=torch.float64)
    values = measured.centre.abs().nan_to_num(0.0, 0.0, 0.0)
    return values.max() / typical


def random_signs(count: int, seed: int) -> Tensor:
    """Signed values with magnitudes in [0.5, 1.5): never near zero, never all alike."""
    generator = torch.Generator().manual_seed(seed % 2**63)
    magnitude = torch.rand(count, generator=generator, dtype=torch.float64) + 0.5
    sign = torch.randint(0, 2, (count,), generator=generator) * 2 - 1
    return magnitude * sign


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
