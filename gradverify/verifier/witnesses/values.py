"""The first witness: forward's values around a point, by finite differences with a measured error.

Two forms. The *proof* is the dot-product test u·Jv = (Aᵀu)·v along one random direction: its left side needs
four values of forward, its right side a backward, and a residual below a threshold is itself the proof, for a
fault and an error that cancel to so many digits do not occur (`engine.md` §12.8). *Slopes* are derivatives
along one coordinate or direction, for all rows at once, each with an error.

For F_k = f(x + k t), d_k = F_k - F_-k, s_k = F_k + F_-k (Fornberg, 1988, for the weights; Hamming, *Numerical
Methods*, ch. 6, for high differences as a measure of noise):

    D4 = (8 d1 - d2) / 12t        D6 = (45 d1 - 9 d2 + d3) / 60t
    n  = |s3 - 6 s2 + 15 s1 - 20 f| / sqrt(924)      a sample of the noise of f

At an end of a declared range the same is done to one side alone: forward is never called outside of it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.problem import Layout, Problem
from gradverify.verifier.witnesses.rounding import FACTOR, spread

EPSILON = 2.0**-52
"""Distance from 1 to the next float64."""

SAFETY = 10.0
"""A measured error is an estimate from few samples: it is taken so many times (`engine.md` §8.6)."""

REACH = 2.0**-8
"""An entry near zero is moved by this share of its tensor's typical magnitude."""

REACH_OF_ZERO = 2.0**-4
"""The same of a zero where a format has few digits: near other numbers a kink at zero would be met."""

WEIGHED = 1024.0
"""A row this much smaller than the mean slope is weighed by that, and not by its own size."""

GROWTH = 2.0
"""Where two steps differ by more than this times both errors, none of them is believed."""

KINK = 0.3
"""One-sided slopes differ by a share that stays the same as the step shrinks, to within this share of it."""

LARGE = 2.0**12
"""The factor between the two grad_outputs of a proof: a backward that is not linear fails one of them."""

SMOOTH = 1e-6
"""A slope with a smaller relative error has no kink."""

FINE = 1e-9
"""An error below this share of the row and of the mean row is not made smaller by another step."""

CONVERGED = 1e-2
"""Where the fourth and the sixth order differ by more than this share, their difference is no estimate."""

SHRINKS = 8.0
"""By how much a slope that goes to zero is smaller at the next step, or a curve bends less nearby."""


@dataclass(frozen=True)
class Steps:
    """Steps for a format: as shares of each entry's own scale, with what they can show."""

    epsilon: float
    proofs: tuple[tuple[float, float], ...]
    """(step, residual below which the dot-product test is a proof)."""
    levels: tuple[float, ...]
    """Of slopes, in the order in which they are tried."""
    near: tuple[float, float]
    """Two steps at which a kink shows."""
    smallest: float
    """Below it the format has fewer digits with each power of two."""

    @property
    def is_short(self) -> bool:
        """Whether forward has fewer digits than float64."""
        return self.epsilon > EPSILON


FLOAT64 = Steps(
    EPSILON,
    ((2.0**-12, 2.0**-33), (2.0**-19, 2.0**-28)),
    (2.0**-10, 2.0**-17, 2.0**-23, 2.0**-5),
    (2.0**-17, 2.0**-23),
    2.0**-1022,
)
FLOAT32 = Steps(
    2.0**-23,
    ((2.0**-7, 2.0**-12), (2.0**-10, 2.0**-9), (2.0**-4, 2.0**-9)),
    (2.0**-5, 2.0**-3, 2.0**-7),
    (2.0**-7, 2.0**-9),
    2.0**-126,
)
"""Of what computes in float32 (`design.md`, *Widened*)."""

TWO_SIDED = {-3: -1 / 60, -2: 9 / 60, -1: -45 / 60, 1: 45 / 60, 2: -9 / 60, 3: 1 / 60}
TWO_SIDED_LOW = {-2: 1 / 12, -1: -8 / 12, 1: 8 / 12, 2: -1 / 12}
ONE_SIDED = {0: -147 / 60, 1: 360 / 60, 2: -450 / 60, 3: 400 / 60, 4: -225 / 60, 5: 72 / 60, 6: -10 / 60}
ONE_SIDED_LOW = {0: -25 / 12, 1: 48 / 12, 2: -36 / 12, 3: 16 / 12, 4: -3 / 12}
"""Weights of sixth and fourth order by the number of steps; they add up to zero."""

GAIN = {True: 1.1, False: 12.7}
"""What a unit of noise in f is in D6, in units of 1/step: the root of the summed squares of the weights."""

SIXTH = 924.0**0.5
"""Root of the summed squares of 1, 6, 15, 20, 15, 6, 1."""


def probe(count: int, key: int) -> Tensor:
    """Signed numbers of magnitude 1/2 to 3/2 with twelve binary digits: steps along them are exact."""
    generator = torch.Generator().manual_seed(7919 + key)
    sign = torch.randint(0, 2, (count,), generator=generator) * 2.0 - 1
    return sign.double() * (0.5 + torch.randint(0, 4096, (count,), generator=generator) / 4096.0).double()


def alone(u: Tensor, chosen: Tensor | slice) -> Tensor:
    """The chosen entries of a vector, and zeros elsewhere."""
    made = torch.zeros_like(u)
    made[chosen] = u[chosen]
    return made


def scales_of(x: Tensor, inputs: Layout, of_zero: float = REACH) -> Tensor:
    """The magnitude of each entry (N), kept near its tensor's typical one; 0 where it is not finite.

    That of a zero is the share `of_zero` of the typical one.
    """
    scales = torch.zeros_like(x)
    for own in inputs.slices:
        size = x[own].abs()
        known = size[(size > 0) & size.isfinite()]
        typical = float(known.median()) if known.numel() else 1.0
        highest = max(typical, float(known.min()) / REACH) if known.numel() else 1.0
        near = torch.where(size == 0, of_zero * typical, size.clamp(REACH * typical, highest))
        scales[own] = torch.where(size.isfinite(), near, 0.0)
    return scales


class Slope(NamedTuple):
    """The derivative of every row along one direction (M)."""

    value: Tensor
    error: Tensor
    """It holds its safety factor; infinite where nothing is known."""
    low: Tensor
    """The smaller one-sided slope where the row has a kink; elsewhere the value."""
    high: Tensor

    @property
    def kink(self) -> Tensor:
        """Rows whose one-sided slopes differ beyond their errors (bool, M)."""
        return self.high > self.low

    @staticmethod
    def smooth(value: Tensor, error: Tensor) -> Slope:
        """Of rows without a kink."""
        return Slope(value, error, value, value)

    def times(self, factor: float) -> Slope:
        """The slope along the direction times a positive factor."""
        return Slope(*(factor * one for one in self))

    def where(self, chosen: Tensor, other: Slope) -> Slope:
        """The slope in the chosen rows, the other one elsewhere."""
        return Slope(*(torch.where(chosen, mine, its) for mine, its in zip(self, other, strict=True)))


@dataclass(frozen=True)
class Level:
    """A derivative at one step (M), and what limits it."""

    step: float
    value: Tensor
    truncation: Tensor
    noise: Tensor
    """Of f, as its sixth differences show it."""
    gain: float
    far: Tensor
    """Rows of which so wide a step shows no slope (bool, M): its two orders differ, and not by rounding."""

    def error(self, floor: Tensor) -> Tensor:
        """With its safety factor, for noise that is known of beside its own."""
        return SAFETY * (self.truncation + self.gain * torch.maximum(self.noise, floor) / self.step)


def _shrinks(level: Level, levels: Sequence[Level]) -> Tensor:
    """Rows whose slope goes to zero with the step (bool, M): of x |x| no two orders agree at zero."""
    wider = [other.value.abs() for other in levels if other.step > level.step]
    if not wider:
        return torch.zeros_like(level.far)
    return level.value.abs() <= torch.stack(wider).nan_to_num(0.0).amin(dim=0) / SHRINKS


def _best_of(levels: Sequence[Level]) -> tuple[Tensor, Tensor]:
    """Row by row the derivative with the smallest error.

    Noise does not shrink with the step, curves and oscillations do: what a smaller step shows is noise at a
    larger one, too, which may have been lucky.
    """
    best = error = torch.zeros(0)
    for number, level in enumerate(levels):
        smaller = [o.noise for o in levels if o.step < level.step]
        floor = torch.stack(smaller).nan_to_num(0.0).amax(dim=0) if smaller else torch.zeros_like(level.noise)
        e = level.error(floor)
        known = level.value.isfinite() & e.isfinite() & ~(level.far & ~_shrinks(level, levels))
        d, e = torch.where(known, level.value, 0.0), torch.where(known, e, torch.inf)
        if not number:
            best, error = d, e
            continue
        apart = (d - best).abs()
        clash = e.isfinite() & error.isfinite() & (apart > GROWTH * (e + error))
        best, error = torch.where(e < error, d, best), torch.minimum(e, error)
        error = torch.where(clash, torch.maximum(error, apart), error)
    return best, error


class Values:
    """Forward's values around a point."""

    def __init__(
        self,
        problem: Problem,
        *,
        steps: Steps = FLOAT64,
        bounds: tuple[Tensor, Tensor] | None = None,
        held: Tensor | None = None,
    ) -> None:
        """`bounds` are the declared ends of each entry (N each, infinite for none); `held` never move."""
        self.problem, self.steps = problem, steps
        self.inputs, self.outputs = Layout.of(problem.primals), problem.outputs
        self.x = self.inputs.flatten(problem.primals)
        self.scale = scales_of(self.x, self.inputs, REACH_OF_ZERO if steps.is_short else REACH)
        self.held = held
        if held is not None:
            self.scale = torch.where(held, 0.0, self.scale)
        self.inward = torch.zeros_like(self.x)
        if bounds is not None:
            self._keep_within(*bounds)
        self.noise: Tensor | None = None
        """Rounding of each row as its own operations show it (M), once that was asked for."""

    def _keep_within(self, lowest: Tensor, highest: Tensor) -> None:
        """Shorten the scales of entries near an end, and turn those at one inwards."""
        below, above = self.x - lowest, highest - self.x
        nearest = torch.minimum(below, above)
        at_end = nearest < self.scale * REACH
        self.inward = torch.where(at_end, torch.where(below <= above, 1.0, -1.0), 0.0)
        room = torch.where(at_end, (highest - lowest) / 8, nearest)
        self.scale = torch.minimum(self.scale, room.clamp_min(0.0).nan_to_num(torch.inf, posinf=torch.inf))

    def know_noise(self) -> None:
        """Ask for the rounding of forward's own operations, which no few differences are sure to show."""
        if self.noise is None:
            self.noise = spread(self.at, self.x, self.steps.epsilon)

    def beside(self, way: Tensor) -> Values:
        """The same around a point nearby, as many scales away along each coordinate (N)."""
        there = copy.copy(self)
        there.__dict__.pop("centre", None)
        there.x = self.x + self.scale * way
        return there

    @cached_property
    def centre(self) -> Tensor:
        """f(x) without a graph, like its neighbours: with one, torch may add in another order."""
        return self.at(self.x)

    def at(self, x: Tensor) -> Tensor:
        """F at another point (M); NaN where it raises."""
        result = self.problem.evaluate_fresh(self.inputs.unflatten(x))
        if isinstance(result, Raised):
            return torch.full((self.outputs.size,), torch.nan, dtype=torch.float64)
        return self.outputs.flatten(result.value)

    def turned(self, v: Tensor) -> Tensor:
        """A direction (N) turned inwards at the ends of a declared range."""
        return torch.where(self.inward != 0, v.abs() * self.inward, v)

    def direction(self, key: int, columns: Tensor | slice | None = None) -> Tensor:
        """A random direction (N), of some columns alone; each entry moves by about its own scale."""
        v = self.turned(probe(len(self.x), key)) * self.scale
        return v if columns is None else alone(v, columns)

    def unit(self, column: int) -> Tensor:
        """The direction of one coordinate, as long as its scale."""
        return alone(self.turned(self.scale), slice(column, column + 1))

    def _moved(self, v: Tensor, step: float) -> tuple[Callable[[float], Tensor], Tensor]:
        """F at multiples of a step along v, and the direction of the steps that are really taken."""
        taken = self.inputs.flatten(self.inputs.unflatten(self.x + step * v)) - self.x

        def value(k: float) -> Tensor:
            return self.centre if k == 0 else self.at(self.x + k * taken)

        return value, taken / step

    def _two_sided(self, v: Tensor) -> bool:
        return not ((self.inward != 0) & (v != 0)).any()

    def first_difference(self, v: Tensor, step: float) -> tuple[Tensor, Tensor]:
        """D4 along v (M) from four values, and the direction that the steps really took (N)."""
        weights = TWO_SIDED_LOW if self._two_sided(v) else ONE_SIDED_LOW
        value, taken = self._moved(v, step)
        return _combined({k: value(k) for k in weights}, weights) / step, taken

    def at_level(self, v: Tensor, step: float) -> Level:
        """D6 along v with what it takes to know its error."""
        two = self._two_sided(v)
        value, _ = self._moved(v, step)
        sixth, fourth = (TWO_SIDED, TWO_SIDED_LOW) if two else (ONE_SIDED, ONE_SIDED_LOW)
        f = {k: value(k) for k in sixth}
        d6, d4 = _combined(f, sixth) / step, _combined(f, fourth) / step
        f[0] = self.centre
        row = torch.stack([f[k] for k in sorted(f)])
        pairs = zip((1, -6, 15, -20, 15, -6, 1), row, strict=True)
        noise = 2 * torch.stack([c * r for c, r in pairs]).sum(0).abs() / SIXTH
        floor = self.steps.epsilon * row.abs().amax(dim=0)
        noise = torch.maximum(noise, self.steps.epsilon * self.centre.abs())
        if self.noise is not None:
            floor, noise = torch.maximum(floor, self.noise), torch.maximum(noise, self.noise)
        truncation = (d6 - d4).abs()
        apart = ~(truncation <= CONVERGED * d6.abs())
        shaped = truncation > FACTOR * GAIN[two] * floor / step
        truncation = torch.where(apart, 4 * truncation, truncation)
        return Level(step, d6, truncation + EPSILON * d6.abs(), noise, GAIN[two], apart & shaped)

    def slope(self, v: Tensor, share: float = 1.0) -> Slope:
        """The derivative along v, row by row the best of several steps; a kink where no step is good."""
        levels: list[Level] = []
        kinks: Slope | None = None
        best = error = torch.zeros(0)
        for number, step in enumerate(self.steps.levels):
            levels.append(self.at_level(v, step * share))
            best, error = _best_of(levels)
            fine = bool((error <= FINE * (best.abs() + best.abs().nan_to_num(0.0).mean())).all())
            if fine and number != 1:  # the noise of that step shows at the next alone
                return Slope.smooth(best, error)
            if number == 1 and self._two_sided(v):
                kinks = self._with_kinks(v, share, best, error)
                if (kinks.kink | (error <= SMOOTH * best.abs())).all():
                    return kinks
        if kinks is None:
            return Slope.smooth(best, error)
        return kinks.where(kinks.kink, Slope.smooth(best, error))

    def at_step(self, v: Tensor, step: float) -> Slope:
        """The derivative along v by one step alone: a fast part of forward is no noise at a short one."""
        level = self.at_level(v, step)
        error = torch.where(level.far, torch.inf, level.error(torch.zeros_like(level.noise)))
        return Slope.smooth(level.value, error)

    def _with_kinks(self, v: Tensor, share: float, best: Tensor, error: Tensor) -> Slope:
        """The slope, with both one-sided slopes where they stay apart as the step shrinks."""
        doubtful = error > SMOOTH * best.abs()
        if not doubtful.any():
            return Slope.smooth(best, error)
        sides = []
        for step in (near * share for near in self.steps.near):
            value, _ = self._moved(v, step)
            sides += [(self.centre - value(-1)) / step, (value(1) - self.centre) / step]
        l1, r1, l2, r2 = sides
        noise = 4 * self.steps.epsilon * self.centre.abs() / step
        before, now = (r1 - l1) / 2, (r2 - l2) / 2
        # A jump's would grow as 1/step, curvature's shrink.
        stays = (before - now).abs() <= KINK * before.abs()
        kink = doubtful & stays & (now.abs() > 20 * noise) & (now.abs() > 1e-5 * (l2.abs() + r2.abs()))
        low, high = torch.stack(sides).aminmax(dim=0)
        spread_of = (l1 - l2).abs() + (r1 - r2).abs() + noise
        return Slope((low + high) / 2, spread_of, low, high).where(kink, Slope.smooth(best, error))

    def weights(self, d: Tensor, key: int, rows: slice | None = None) -> Tensor:
        """A grad_output (M) that weighs each row by its own slope; zero elsewhere."""
        size = d.abs().nan_to_num(torch.inf)
        known = size[size.isfinite()]
        floor = float(known.mean()) / WEIGHED if known.numel() and float(known.mean()) > 0 else 1.0
        u = torch.where(size.isfinite(), probe(len(d), key) / (size + floor), 0.0)
        return u if rows is None else alone(u, rows)


def _combined(f: Mapping[int, Tensor], weights: Mapping[int, float]) -> Tensor:
    """The weighted sum of values, as differences of pairs: exactly zero where none of them differs."""
    each = [w * (f[k] - f[-k if -k in f else 0]) for k, w in weights.items() if k > 0]
    return torch.stack(each).sum(0)


@dataclass(frozen=True)
class Difference:
    """The dot-product test: slopes along a direction, and the grad_outputs that weigh them."""

    slope: Tensor
    """Along v (M)."""
    taken: Tensor
    """The direction that was really taken (N)."""
    limit: float
    """What the residual must stay below, in units of a row's own slope."""
    cotangents: Tensor
    """Its grad_outputs (K × M)."""
    sizes: Tensor
    """How many times as large backward gets each of them (K × 1)."""

    def closes(self, gradients: Tensor, limit: float) -> bool:
        """Whether the residual of each grad_output is within a limit, `gradients` being Aᵀu (K × N)."""
        each = zip(self.cotangents, gradients, strict=True)
        return all(self._residual(u, gradient) <= limit for u, gradient in each)

    def _residual(self, u: Tensor, gradient: Tensor) -> float:
        """|u·Jv - (Aᵀu)·v|."""
        there = self.taken != 0
        if not gradient[there].isfinite().all():
            return torch.inf
        expected = torch.where(u != 0, u * self.slope, 0.0).sum()
        return abs(float(expected - torch.where(there, gradient * self.taken, 0.0).sum()))

    @property
    def is_flat(self) -> bool:
        """Whether no row moves at all."""
        return bool((self.slope == 0).all())


def differences(values: Values, key: int, v: Tensor) -> Iterator[Difference]:
    """The attempts at a proof along v, in order of cost, as far as forward is finite there."""
    cotangents = sizes = torch.zeros(0, 1, dtype=torch.float64)
    for step, limit in values.steps.proofs:
        slope, taken = values.first_difference(v, step)
        if not slope.isfinite().all():
            continue
        if not len(cotangents):
            each = [values.weights(slope, k, own) for k, own in enumerate(values.outputs.slices, key + 11)]
            cotangents = torch.stack([values.weights(slope, key + 7), *each])
            sizes = torch.full_like(cotangents[:, :1], 2.0**-20)
            sizes[0] = -LARGE
        yield Difference(slope, taken, limit * max(1, values.outputs.size) ** 0.5, cotangents, sizes)
