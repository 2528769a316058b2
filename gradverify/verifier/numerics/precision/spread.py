"""How far rounding inside may move each entry of a value, from runs that err at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradverify.verifier.numerics.precision.formats import SINGLE_UNIT, Format

FLOOR = 0.25
"""Noise is at least this share of the unit times the row's and the tensor's root mean square: a structural
zero may come out as rounding of its neighbours."""


@dataclass(frozen=True)
class Noise:
    """The scatter of one value, shaped like it."""

    sigma: Tensor
    """Standard deviation, absolute, float64."""
    null: Tensor
    """(draws, *shape): deviations that rounding alone made; empty where nothing was measured."""

    @property
    def usable(self) -> bool:
        """Whether it is a number, and positive where there is anything: else no test may pass by it."""
        return bool((self.sigma.isfinite() & (self.sigma > 0)).all() and self.null.isfinite().all())


def least_noise(truth: Tensor, unit: float, smallest: float) -> Noise:
    """What any computation in that unit may err by; measured noise only adds to it."""
    return noise_of(truth, (), (), unit, smallest)


def inside_noise(truth: Tensor, erring: Sequence[Tensor], moved: Sequence[Tensor]) -> Noise:
    """Noise of a computation in float32 throughout: the last rounding, to a shorter dtype, is not in it."""
    return noise_of(truth, erring, moved, SINGLE_UNIT, torch.finfo(torch.float32).tiny)


def rounding_noise(truth: Tensor, erring: Sequence[Tensor], moved: Sequence[Tensor], form: Format) -> Noise:
    """Noise of a computation that rounds every intermediate to the format, and the result too.

    The result's rounding is uniform within u of its value: variance (u*T)^2/3.
    """
    inside = noise_of(truth, erring, moved, form.unit, form.tiny)
    variance = inside.sigma**2 + (form.unit * truth) ** 2 / 3 + form.tiny**2 / 4
    return Noise(variance.sqrt(), inside.null)


def noise_of(
    truth: Tensor, erring: Sequence[Tensor], moved: Sequence[Tensor], unit: float, smallest: float
) -> Noise:
    """Combine runs that err in every operation, and runs at moved inputs, with the floor.

    All tensors have `truth`'s shape. A NaN stays one, so that no test passes by it.
    """
    squares = truth**2
    of_rows = squares.mean(dim=-1, keepdim=True) if squares.dim() else squares
    variance = (FLOOR * unit) ** 2 * (of_rows + squares.mean()) + smallest**2
    deviations = [torch.stack([run - truth for run in runs]) for runs in (erring, moved) if runs]
    for deviation in deviations:
        variance = variance + (deviation**2).mean(dim=0)
    null = torch.cat(deviations) if deviations else truth.new_zeros((0, *truth.shape))
    return Noise(variance.sqrt(), null)
