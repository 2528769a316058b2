"""The derivative of forward by six-point central differences, with a measured error for every row.

For f sampled at x + k·t, k = -3…3, with d_k = f(x + kt) - f(x - kt) and s_k = f(x + kt) + f(x - kt):

    D4 = (8 d1 - d2) / 12t             fourth order
    D6 = (45 d1 - 9 d2 + d3) / 60t     sixth order, the value that is used
    n  = |s3 - 6 s2 + 15 s1 - 20 f| / sqrt(924)

n is the sixth difference, scaled so that independent rounding errors of size σ in the seven samples give
n ≈ σ: a sample of the noise in f itself. (Fornberg, *Generation of finite difference formulas*, 1988, for
the weights; Hamming, *Numerical Methods*, ch. 6, for high differences as a measure of noise.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.flat import Layout
from gradverify.verifier.numerics.noise import own_noise, typical_values
from gradverify.verifier.numerics.problem import Problem

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
