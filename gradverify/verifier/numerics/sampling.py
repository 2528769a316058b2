"""The derivative of forward by six-point central differences, with a measured error for every row.

For f sampled at x + k·t, k = -3…3, with d_k = f(x + kt) - f(x - kt) and s_k = f(x + kt) + f(x - kt):

    D4 = (8 d1 - d2) / 12t             fourth order
    D6 = (45 d1 - 9 d2 + d3) / 60t     sixth order, the value that is used
    n  = |s3 - 6 s2 + 15 s1 - 20 f| / sqrt(924)

n is the sixth difference, scaled so that independent rounding errors of size σ in the seven samples give
n ≈ σ: a sample of the noise in f itself. (Fornberg, *Generation of finite difference formulas*, 1988, for
the weights; Hamming, *Numerical Methods*, ch. 6, for high differences as a measure of noise.)

The noise in f: what its own rounding must be, and what sixth differences show of more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.problem import Layout, Problem

ENOUGH_SAMPLES = 4
"""Sixth differences that must be at hand before the rows of an output are pooled."""

SHRINKS = 8.0
"""A kink's sixth difference shrinks as the step does, by 64 or more from level to level, curvature's faster:
what shrinks by less than this is noise."""

TINIEST = torch.finfo(torch.float64).tiny


def own_noise(centre: Tensor, outputs: Layout) -> Tensor:
    """The rounding of f itself in the dtype in which it is returned, for each row (M).

    A row that is exactly zero does not tell how large the numbers were that cancelled or underflowed: it
    gets the rounding of its output's largest value.
    """
    size = centre.abs().nan_to_num(0.0, 0.0, 0.0)
    return outputs.rounding * torch.where(size > 0, size, typical_values(centre, outputs))


def typical_values(centre: Tensor, outputs: Layout) -> Tensor:
    """The largest finite value of the output that each row belongs to (M)."""
    typical = centre.abs().nan_to_num(0.0, 0.0, 0.0)
    for rows in outputs.slices:
        typical[rows] = typical[rows].max()
    return typical


def noise_floor(samples: Tensor, own: Tensor, outputs: Layout) -> Tensor:
    """Noise of f for each row (M): its own rounding, and what the samples (columns × M) show.

    One sample may be small by luck, so samples are pooled over the columns of a row and over the rows of an
    output. The median keeps a few columns that step over a kink out of it.
    """
    if not samples.shape[0]:
        return own
    floor = torch.maximum(own, robust_noise(samples))
    for rows in outputs.slices:
        touched = samples[:, rows][samples[:, rows] > 0]
        if touched.numel() >= ENOUGH_SAMPLES and rows.stop - rows.start > 1:
            pooled = torch.minimum(touched.square().mean().sqrt(), 3 * touched.median())
            # A row far smaller than its neighbours has its own, smaller noise: pool relative to magnitude.
            relative = own[rows] / own[rows].max().clamp_min(TINIEST)
            floor[rows] = torch.maximum(floor[rows], pooled * relative)
    return floor


def robust_noise(samples: Tensor) -> Tensor:
    """min(rms, 3 · median) over the positive samples of each row; samples are columns × M."""
    positive = torch.where(samples > 0, samples, torch.nan)
    median = positive.nanmedian(dim=0).values.nan_to_num(0.0)
    rms = positive.square().nanmean(dim=0).sqrt().nan_to_num(0.0)
    return torch.minimum(rms, 3 * median)


def persistent_noise(levels: Sequence[Tensor], floor: Tensor, own: Tensor, outputs: Layout) -> Tensor:
    """The noise of f, separated from kinks and curvature: noise does not shrink with the step, they do.

    `levels` are sixth differences (columns × M) at steps each 64 or more times smaller than the one before;
    `floor` is what was thought of the noise so far.
    """
    noise = own
    for before, after in pairwise(noise_floor(level, own, outputs) for level in levels):
        stays = after >= before / SHRINKS
        noise = torch.maximum(noise, torch.where(stays, 2 * torch.maximum(before, after), 0.0))
    return torch.minimum(floor, noise)


OFFSETS = (-3, -2, -1, 1, 2, 3)
"""Multiples of the step at which f is sampled, beside the centre."""

SIXTH_DIFFERENCE_NORM = 924.0**0.5
"""Root of the summed squares of the weights 1, 6, 15, 20, 15, 6, 1."""

ROUND_OFF_GAIN = 1.1
"""Noise in D6 in units of (noise in f) / t: sqrt(2(45² + 9² + 1²)) / 60 = 1.08, rounded up."""

SMALLEST_SCALE = 2.0**-8
"""An entry near zero is moved by this share of its tensor's typical magnitude."""

VALUES_AT_ONCE = 2**20
"""Values of f that are combined at once: seven float64 arrays of them take 56 MB."""


@dataclass(frozen=True)
class Samples:
    """What six samples around a point tell about every row of f, for any number of points at once.

    Tensors have the shape of the samples, with rows of f last; `step` broadcasts against them.
    """

    derivative: Tensor
    """D6."""
    truncation: Tensor
    """|D6 - D4|: the error of the fourth-order value, so a large over-estimate for D6. Infinite where f
    was not finite at one of the points."""
    noise: Tensor
    """The sixth difference as a sample of the noise in f."""
    flat: Tensor
    """True where all six values equal the centre's bit for bit."""
    left: Tensor
    """Slope from the left neighbour to the centre."""
    right: Tensor
    """Slope from the centre to the right neighbour."""
    step: Tensor

    @property
    def half_jump(self) -> Tensor:
        """Half the difference of the one-sided slopes: O(step) where f is smooth, constant at a kink."""
        return (self.right - self.left).abs() / 2

    @property
    def steepest(self) -> Tensor:
        """The larger one-sided slope."""
        return torch.maximum(self.left.abs(), self.right.abs())

    def amplified(self, noise_floor: Tensor) -> Tensor:
        """What a known noise in f does to D6: an error of its own, beside truncation."""
        return ROUND_OFF_GAIN * torch.maximum(2 * self.noise, noise_floor) / self.step

    def error(self, noise_floor: Tensor) -> Tensor:
        """Error of D6 for a known noise in f: truncation plus amplified noise.

        A flat row shows only that f moves by less than its own rounding over the whole span, so its
        error is that rounding, not zero: saturated functions have small derivatives, not none.
        """
        return self.truncation + self.amplified(noise_floor)

    def at(self, points: Tensor) -> Samples:
        """The samples of some of the points."""
        return Samples(*(getattr(self, f.name)[points] for f in fields(self)))

    @staticmethod
    def joined(parts: Sequence[Samples]) -> Samples:
        """The samples of several groups of points, one after the other."""
        if len(parts) == 1:
            return parts[0]
        return Samples(*(torch.cat([getattr(p, f.name) for p in parts]) for f in fields(Samples)))


def six_point(values: Mapping[int, Tensor], centre: Tensor, step: Tensor) -> Samples:
    """Combine f(x + k·step) for the k of `OFFSETS` into derivative and error.

    The last dimension of each value holds the rows of f, as `centre` does; `step` broadcasts. NaN stands
    for a point at which f could not be evaluated.
    """
    d1, d2, d3 = (values[k] - values[-k] for k in (1, 2, 3))
    s1, s2, s3 = (values[k] + values[-k] for k in (1, 2, 3))
    fourth = (8 * d1 - d2) / (12 * step)
    sixth = (45 * d1 - 9 * d2 + d3) / (60 * step)
    noise = (s3 - 6 * s2 + 15 * s1 - 20 * centre).abs() / SIXTH_DIFFERENCE_NORM
    finite = sixth.isfinite() & noise.isfinite() & fourth.isfinite()
    return Samples(
        derivative=torch.where(finite, sixth, 0.0),
        truncation=torch.where(finite, (sixth - fourth).abs(), torch.inf),
        noise=torch.where(finite, noise, 0.0),
        flat=torch.stack([values[k] == centre for k in OFFSETS]).all(dim=0),
        left=(centre - values[-1]) / step,
        right=(values[1] - centre) / step,
        step=step,
    )


class Sampler:
    """Forward around one point: values, and by how much an input moves, and an output errs."""

    def __init__(self, problem: Problem, centre: Tensor, noise: Tensor | None = None) -> None:
        """`centre` is f(x), flat; `noise` a known noise of f (M entries) beyond its own rounding."""
        self.problem = problem
        self.inputs = Layout.of(problem.primals)
        self.centre = centre
        self.x = self.inputs.flatten(problem.primals)
        self.scales = scales_of(self.x, self.inputs)
        self.noise = noise
        own = own_noise(centre, problem.outputs)
        self.own = own if noise is None else torch.maximum(own, noise)
        """The rounding of f itself (M)."""
        self.typical = typical_values(centre, problem.outputs)
        """The largest value of the output that each row belongs to (M)."""

    def of(self, submap: Problem) -> Sampler:
        """The same for a map with the same outputs."""
        return Sampler(submap, self.centre, self.noise)

    def sample(self, columns: Sequence[int], steps: Tensor) -> Samples:
        """Six points around each of some coordinates: tensors of (number of columns) × M."""
        at_once = max(1, VALUES_AT_ONCE // max(1, self.centre.numel()))
        groups = [slice(k, k + at_once) for k in range(0, max(1, len(columns)), at_once)]
        return Samples.joined([self._group(columns[g], steps[g]) for g in groups])

    def _group(self, columns: Sequence[int], steps: Tensor) -> Samples:
        here = self.x[list(columns)]
        exact = (here + steps) - here
        points = here[:, None] + exact[:, None] * torch.tensor(OFFSETS, dtype=torch.float64)
        rows = []
        for j, own in zip(columns, points, strict=True):
            moved = self.x.repeat(len(OFFSETS), 1)
            moved[:, j] = own
            rows += [self.value_at(vector) for vector in moved]
        shape = (len(columns), len(OFFSETS), self.centre.numel())
        values = torch.stack(rows).view(shape) if rows else self.centre.new_zeros(shape)
        return six_point(dict(zip(OFFSETS, values.unbind(1), strict=True)), self.centre, exact[:, None])

    def along(self, moved: Tensor, step: float) -> Samples:
        """Six points at multiples of what moves x (N entries), which is `step` times the direction."""
        values = {k: self.value_at(self.x + k * moved) for k in OFFSETS}
        return six_point(values, self.centre, torch.tensor(step, dtype=torch.float64))

    def value_at(self, x: Tensor) -> Tensor:
        """Value of f (M) at another point; NaN where it raises."""
        result = self.problem.evaluate_fresh(self.inputs.unflatten(x))
        if isinstance(result, Raised):
            return torch.full_like(self.centre, torch.nan)
        return self.problem.outputs.flatten(result.value)


def scales_of(x: Tensor, inputs: Layout) -> Tensor:
    """A power of two near each entry's magnitude, kept within a range of its tensor's typical one."""
    scales = torch.ones_like(x)
    for own in inputs.slices:
        part = x[own].abs()
        nonzero = part[(part > 0) & part.isfinite()]
        typical = nonzero.median().item() if nonzero.numel() else 1.0
        typical = 2.0 ** math.floor(math.log2(typical))
        clamped = part.nan_to_num(typical, typical, typical).clamp(SMALLEST_SCALE * typical, typical)
        scales[own] = torch.exp2(clamped.log2().floor())
    return scales
