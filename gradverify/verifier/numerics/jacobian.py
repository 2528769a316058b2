"""The Jacobian that forward has, measured column by column.

Matrices are M × N: M real coordinates of the outputs, N of the inputs (a complex number counts twice).
Cost: 6N forwards, 18 or 24 more for a column that does not resolve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.noise import noise_floor, typical_values
from gradverify.verifier.numerics.refine import FIRST_STEP, Refined, measured_error, refine
from gradverify.verifier.numerics.sampling import Sampler
from gradverify.verifier.numerics.tolerance import SAFETY

RESOLVED = 1e-8
"""An entry is resolved when its error is below this share of (|D| + median |D| of its row)."""

NEGLIGIBLE = 1e-9
"""A derivative that is zero to within its error is resolved when moving the input by its whole size changes
the output by less than this share of it."""

ENTRIES = ("value", "error", "flat", "kink", "step")
"""What is known of each entry."""


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

    def with_columns(self, columns: Sequence[int], other: NumericalJacobian | Refined) -> NumericalJacobian:
        """The same with some columns as they are in another measurement, which has these alone."""
        changed = {name: getattr(self, name).clone() for name in ENTRIES}
        for name, whole in changed.items():
            whole[:, columns] = getattr(other, name)
        return replace(self, noise=other.noise, **changed)


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

    def joined(self, measured: NumericalJacobian, own: Tensor) -> NumericalJacobian:
        """The measured columns, then these: no better than the noise `own` of f (M), whose values they are.

        They are its values at coordinates of size one.
        """
        none = torch.zeros_like(self.value)
        # What is linear in a coordinate with the coefficient zero does not depend on it at all.
        error, flat = torch.maximum(self.error, own[:, None]), self.value == 0
        known = dict(zip(ENTRIES, (self.value, error, flat, none, none + FIRST_STEP), strict=True))
        whole = {name: torch.cat([getattr(measured, name), own], dim=1) for name, own in known.items()}
        scale = torch.cat([measured.scale, measured.scale.new_ones(self.count)])
        return replace(measured, **whole, scale=scale)


def numerical_jacobian(
    sampler: Sampler, *, suspect: Tensor | None = None, only: Sequence[int] | None = None
) -> NumericalJacobian:
    """The Jacobian that forward has, column by column.

    `suspect` is the analytical Jacobian where one is known: columns in conflict with it are measured again
    with other steps. `only` are the columns that are measured: the result has these alone then.
    """
    outputs = sampler.problem.outputs
    asked = list(range(sampler.x.numel()) if only is None else only)
    samples = sampler.sample(asked, FIRST_STEP * sampler.scales[asked])
    floor = noise_floor(samples.noise, sampler.own, outputs)
    value = samples.derivative.mT.contiguous()
    result = NumericalJacobian(
        value=value,
        error=measured_error(samples, floor, sampler.x[asked, None], sampler.own).mT.contiguous(),
        flat=samples.flat.mT.contiguous(),
        kink=torch.zeros_like(value),
        step=samples.step.mT.expand_as(value).clone(),
        centre=sampler.centre,
        noise=floor,
        scale=sampler.scales[asked],
    )
    claimed = None if suspect is None else suspect[:, asked]
    columns = _unresolved_columns(result, claimed, outputs)
    if not columns:
        return result
    refined = refine(
        sampler,
        [asked[k] for k in columns],
        samples.at(torch.tensor(columns)),
        floor,
        RESOLVED * _largest(result.value),
        None if claimed is None else claimed[:, columns].mT,
    )
    return result.with_columns(columns, refined)


def natural_slope(centre: Tensor, scale: Tensor, outputs: Layout) -> Tensor:
    """|f| / |x| for every entry (M × N): the largest value of each output over the size of each input."""
    return typical_values(centre, outputs)[:, None] / scale


def _largest(value: Tensor) -> Tensor:
    return value.abs().amax(dim=1) if value.shape[1] else value.new_zeros(value.shape[0])


def _unresolved_columns(result: NumericalJacobian, claimed: Tensor | None, outputs: Layout) -> list[int]:
    if not result.value.numel():
        return []
    size = result.value.abs()
    # A zero entry of a sparse row has no scale of its own: noise below that of its largest entry is fine.
    reference = torch.maximum(size + size.median(dim=1, keepdim=True).values, _largest(size)[:, None])
    slope = natural_slope(result.centre, result.scale, outputs)
    zero = (size <= SAFETY * result.error) & (result.error <= NEGLIGIBLE * slope)
    unresolved = (result.error > RESOLVED * reference) & ~zero & ~result.flat
    if claimed is not None:
        unresolved |= ~((result.value - claimed).abs() <= SAFETY * result.error)
    # Where f itself is not finite, no other step helps.
    unresolved &= result.centre.isfinite()[:, None]
    return [int(j) for j in unresolved.any(dim=0).nonzero().flatten().tolist()]
