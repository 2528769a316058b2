"""The Jacobian that forward has, measured column by column.

Matrices are M × N: M real coordinates of the outputs, N of the inputs (a complex number counts twice).
Cost: 6N forwards, 18 or 24 more for a column that does not resolve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradverify.verifier.numerics.difference import Samples
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.noise import noise_floor, own_noise, typical_values
from gradverify.verifier.numerics.problem import Problem
from gradverify.verifier.numerics.refine import FIRST_STEP, Context, Refined, measured_error, refine
from gradverify.verifier.numerics.sampling import Sampler
from gradverify.verifier.numerics.tolerance import SAFETY

RESOLVED = 1e-8
"""An entry is resolved when its error is below this share of (|D| + median |D| of its row)."""

NEGLIGIBLE = 1e-9
"""A derivative that is zero to within its error is resolved when moving the input by its whole size changes
the output by less than this share of it."""


@dataclass(frozen=True)
class NumericalJacobian:
    """The derivative of forward, measured. All tensors are M × N unless said otherwise."""

    value: Tensor
    error: Tensor
    """How far `value` may be off, absolute; infinite where f is not finite nearby."""
    flat: Tensor
    """True where no step whatever changed the output: the derivative is exactly zero."""
    kink: Tensor
    """Half the difference of the one-sided slopes at a kink, zero elsewhere."""
    step: Tensor
    """The step behind each value."""
    centre: Tensor
    """f(x), M entries."""
    noise: Tensor
    """The noise in f, M entries."""
    scale: Tensor
    """The size of each input coordinate, N entries: a power of two."""


@dataclass(frozen=True)
class KnownColumns:
    """The last columns of a Jacobian, known from elsewhere: those of a linear part need no measuring."""

    value: Tensor
    """M × (number of known columns)."""
    error: Tensor

    @property
    def count(self) -> int:
        """How many columns are known."""
        return self.value.shape[1]


def numerical_jacobian(
    problem: Problem,
    centre: Tensor,
    *,
    suspect: Tensor | None = None,
    noise: Tensor | None = None,
    known: KnownColumns | None = None,
    only: Sequence[int] | None = None,
) -> NumericalJacobian:
    """The Jacobian that forward has, column by column.

    `centre` is f(x) flattened; `suspect` is the analytical Jacobian where one is known: columns in conflict
    with it are measured again with other steps before anybody is accused. `noise` is a known noise of f
    (M entries), for outputs whose rounding is larger than their values tell. `known` are columns that are
    not measured, `only` those of the others that are: the result has these alone then.
    """
    sampler = Sampler(problem, centre)
    count = sampler.x.numel() - (known.count if known is not None else 0)
    asked = list(range(count) if only is None else only)
    samples = sampler.sample(asked, FIRST_STEP * sampler.scales[asked])
    own = own_noise(centre, problem.outputs)
    if noise is not None:
        own = torch.maximum(own, noise)
    floor = noise_floor(samples.noise, own, problem.outputs)
    error = measured_error(samples, floor, sampler.x[asked, None], own)
    result = _first_pass(samples, error, floor, sampler, asked)
    suspect = suspect[:, asked] if suspect is not None else None
    columns = _unresolved_columns(result, suspect, problem.outputs)
    if columns:
        against = suspect[:, columns].mT if suspect is not None else None
        typical = typical_values(centre, problem.outputs)
        wanted = RESOLVED * _largest(result.value)
        context = Context(own, floor, typical, wanted, against, problem.outputs)
        again = [asked[k] for k in columns]
        refined = refine(sampler, again, samples.at(torch.tensor(columns)), context)
        _put(result, columns, refined)
        result = replace(result, noise=refined.noise)
    return result if known is None or only is not None else joined(result, known, own)


def natural_slope(centre: Tensor, scale: Tensor, outputs: Layout) -> Tensor:
    """|f| / |x| for every entry (M × N): the largest value of each output over the size of each input."""
    return typical_values(centre, outputs)[:, None] / scale


def _first_pass(
    samples: Samples, error: Tensor, floor: Tensor, sampler: Sampler, columns: list[int]
) -> NumericalJacobian:
    value = samples.derivative.mT.contiguous()
    return NumericalJacobian(
        value=value,
        error=error.mT.contiguous(),
        flat=samples.flat.mT.contiguous(),
        kink=torch.zeros_like(value),
        step=samples.step.mT.expand_as(value).clone(),
        centre=sampler.centre,
        noise=floor,
        scale=sampler.scales[columns],
    )


def _largest(value: Tensor) -> Tensor:
    return value.abs().amax(dim=1) if value.shape[1] else value.new_zeros(value.shape[0])


def _unresolved_columns(result: NumericalJacobian, suspect: Tensor | None, outputs: Layout) -> list[int]:
    if not result.value.numel():
        return []
    size = result.value.abs()
    # A zero entry of a sparse row has no scale of its own: noise below that of its largest entry is fine.
    reference = torch.maximum(size + size.median(dim=1, keepdim=True).values, _largest(size)[:, None])
    slope = natural_slope(result.centre, result.scale, outputs)
    zero = (size <= SAFETY * result.error) & (result.error <= NEGLIGIBLE * slope)
    unresolved = (result.error > RESOLVED * reference) & ~zero & ~result.flat
    if suspect is not None:
        unresolved |= ~((result.value - suspect).abs() <= SAFETY * result.error)
    # Where f itself is not finite, no other step helps.
    unresolved &= result.centre.isfinite()[:, None]
    return [int(j) for j in unresolved.any(dim=0).nonzero().flatten().tolist()]


def _put(result: NumericalJacobian, columns: list[int], refined: Refined) -> None:
    result.value[:, columns] = refined.value.mT
    result.error[:, columns] = refined.error.mT
    result.flat[:, columns] = refined.flat.mT
    result.kink[:, columns] = refined.kink.mT
    result.step[:, columns] = refined.step.mT


def joined(measured: NumericalJacobian, known: KnownColumns, own: Tensor) -> NumericalJacobian:
    """Known columns are no better than the noise of f: they are its values at coordinates of size one."""
    none = torch.zeros_like(known.value)
    return NumericalJacobian(
        value=torch.cat([measured.value, known.value], dim=1),
        error=torch.cat([measured.error, torch.maximum(known.error, own[:, None])], dim=1),
        # What is linear in a coordinate with the coefficient zero does not depend on it at all.
        flat=torch.cat([measured.flat, known.value == 0], dim=1),
        kink=torch.cat([measured.kink, none], dim=1),
        step=torch.cat([measured.step, none + FIRST_STEP], dim=1),
        centre=measured.centre,
        noise=measured.noise,
        scale=torch.cat([measured.scale, torch.ones(known.count, dtype=torch.float64)]),
    )
