"""Rounding errors of a native dtype: what it may do to a value, measured, and what it may not.

Test A: every entry is the true value, correctly rounded, up to float32's noise inside. Test B: its error is
one that rounding intermediates to the native dtype explains. Each entry, each slice and the whole are held
against the measured noise, and the error is regressed on the truth, since a constant factor far below the
noise of one entry shows over many.

Where there is no float64 at all, the slope along the gradient is measured in float32: it is as large there
as it can be, and rounding as small beside it, 25 to 45 times less noise than in a random direction. What
backward leaves out does not show there, so forward is followed as well where the gradient is nearly zero. A
slope refutes only where it is known, and where forward is smooth there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from gradverify.verifier.numerics.tolerance import is_known

SINGLE_UNIT = 2.0**-24
"""Unit roundoff of float32 (IEEE 754): what careful kernels compute with inside."""

_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}


@dataclass(frozen=True)
class Format:
    """One floating dtype; a complex one is judged by its parts."""

    dtype: torch.dtype
    """Real."""
    unit: float
    """Unit roundoff u, relative: half the distance from 1 to the next larger number."""
    tiny: float
    """Half the spacing of subnormal numbers, absolute."""
    largest: float

    @property
    def is_short(self) -> bool:
        """Whether it has 16 bits or fewer: then float32 inside is far more exact than the result."""
        return self.unit > SINGLE_UNIT

    @property
    def name(self) -> str:
        """`bfloat16`."""
        return str(self.dtype).removeprefix("torch.")


def format_of(dtype: torch.dtype) -> Format:
    """The format of a floating dtype, or of the parts of a complex one."""
    real = _REAL.get(dtype, dtype)
    info = torch.finfo(real)
    return Format(real, info.eps / 2, info.smallest_normal * info.eps / 2, info.max)


def half_ulp(size: Tensor, form: Format) -> Tensor:
    """How far a correctly rounded value may be from the exact one of that magnitude (float64, its shape).

    Half the distance between two neighbours of the binade, or of the subnormal numbers.
    """
    exponent = torch.frexp(size).exponent.to(torch.float64)  # size = m * 2^exponent, m in [1/2, 1)
    return torch.where(size > 0, torch.exp2(exponent - 1) * form.unit, 0.0).clamp_min(form.tiny)


def as_real(x: Tensor) -> Tensor:
    """The values in float64 on the CPU, the parts of complex ones along a last dimension of 2."""
    plain = x.detach().resolve_conj().resolve_neg()
    real = torch.view_as_real(plain) if plain.is_complex() else plain
    return real.to(device="cpu", dtype=torch.float64)


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


ALLOWANCE = 64.0
"""Standard deviations of float32's noise inside that are allowed: at 16 right kernels failed."""

LIMIT = 1.05
"""The ratio up to which a value counts as correctly rounded: 1 is the definition; right ones reach 1.04."""

FEW = 0.02
"""Share of entries up to which those beyond the limit are outliers, and not the rule."""

FAR = 20.0
"""The ratio from which outliers are worth a warning."""

FEWEST = 6
"""Entries that a slice must have to be judged as one."""

NEAR_ZERO = 128.0
"""Half-spacings of subnormal numbers below which a truth says nothing about a factor."""


@dataclass(frozen=True)
class Rounding:
    """How far entries are from the truth, in units of what correct rounding allows."""

    ratios: Tensor
    """Shaped like the value; 1 is the most that rounding explains. NaN only where something was NaN."""

    @property
    def worst(self) -> float:
        """The largest ratio; NaN where there is one."""
        return self.ratios.max().item() if self.ratios.numel() else 0.0

    @property
    def correct(self) -> bool:
        """Whether every entry is correctly rounded; False where a ratio is NaN."""
        return bool((self.ratios <= LIMIT).all())

    @property
    def share(self) -> float:
        """Share of entries that are not correctly rounded."""
        return (~(self.ratios <= LIMIT)).double().mean().item() if self.ratios.numel() else 0.0

    @property
    def has_outliers(self) -> bool:
        """Whether most entries are correctly rounded and a few are far off."""
        return 0 < self.share <= FEW and self.worst > FAR


def correct_rounding(value: Tensor, truth: Tensor, inside: Noise, form: Format) -> Rounding:
    """Hold a value in a native dtype against the truth in float64; both of one shape, in float64."""
    slack = ALLOWANCE * inside.sigma
    return Rounding((value - truth).abs() / (half_ulp(truth.abs() + slack, form) + slack))


@dataclass(frozen=True)
class Limits:
    """In standard deviations of the noise; set where right kernels of many kinds stay below."""

    entry: float
    slice: float
    whole: float
    slope: float
    """Infinite where factors are not judged."""


SHORT = Limits(entry=40.0, slice=15.0, whole=4.0, slope=12.0)
"""For 16 bits: right kernels reached 37, 10, 0.94 and 7.8."""

SINGLE = Limits(entry=200.0, slice=80.0, whole=20.0, slope=torch.inf)
"""For float32, where mistakes are 10^4 roundings away, and a biased sum may tilt a right gradient."""


@dataclass(frozen=True)
class Explained:
    """How far a value is beyond each limit: 1 is the limit itself."""

    entry: float
    slice: float
    whole: float
    slope: float
    tilted_slice: float
    factor: float
    """The truth times 1 + this is nearest to the value."""
    factor_error: float
    """One standard deviation of that, from rounding alone."""
    where: tuple[int, int] = (-1, -1)
    """(dimension, index) of the slice that is worst, (-1, -1) without one."""

    @property
    def worst(self) -> float:
        """The largest of all; NaN where one is."""
        each = torch.tensor([self.entry, self.slice, self.whole, self.slope, self.tilted_slice])
        return torch.inf if bool(each.isnan().any()) else each.max().item()

    @property
    def ok(self) -> bool:
        """Whether rounding explains everything; a NaN is no explanation."""
        return self.worst <= 1


def explained(value: Tensor, truth: Tensor, noise: Noise, form: Format) -> Explained:
    """Hold a value against the truth; both of one shape, in float64."""
    limits = SHORT if form.is_short else SINGLE
    z = (value - truth) / noise.sigma
    entry = z.abs().max().item() if z.numel() else 0.0
    whole = z.square().mean().sqrt().item() if z.numel() else 0.0
    slopes = _Slopes(value - truth, truth, noise, form)
    beta, sd = slopes.whole()
    worst, where = _worst_slice(z.shape, lambda others: z.square().mean(dim=others).sqrt())
    tilted, tilted_where = 0.0, (-1, -1)
    if limits.slope < math.inf:
        tilted, tilted_where = _worst_slice(z.shape, slopes.of_slices)
    by_slice, by_tilt = worst / limits.slice, tilted / limits.slope
    return Explained(
        entry=entry / limits.entry,
        slice=by_slice,
        whole=whole / limits.whole,
        slope=abs(beta) / sd / limits.slope,
        tilted_slice=by_tilt,
        factor=beta,
        factor_error=sd,
        where=where if by_slice >= by_tilt else tilted_where,
    )


def _worst_slice(
    shape: Sequence[int], measure: Callable[[list[int]], Tensor]
) -> tuple[float, tuple[int, int]]:
    """The largest of what is measured of each slice, and (dimension, index) of that slice.

    `measure` gives it for all slices of a dimension, from the other dimensions.
    """
    worst, where = 0.0, (-1, -1)
    for dimension, size in enumerate(shape):
        others = [d for d in range(len(shape)) if d != dimension]
        if not others or math.prod(shape) // max(size, 1) < FEWEST:
            continue
        each = measure(others)
        if not each.max().item() <= worst:
            worst, where = each.max().item(), (dimension, int(each.argmax()))
    return worst, where


@dataclass(frozen=True)
class _Slopes:
    """Regression of errors on the truth, weighted by the noise: sum(E T / s^2) / sum(T^2 / s^2)."""

    error: Tensor
    truth: Tensor
    noise: Noise
    form: Format

    def whole(self) -> tuple[float, float]:
        """The slope over all entries and its standard deviation."""
        top, bottom, null = self._sums(list(range(self.truth.dim())))
        count = max(int(self._telling.sum()), 1)
        if not bottom.item() > 0:
            return 0.0, 1.0
        spread = (null / bottom).square().mean().sqrt().item() if null.numel() else 0.0
        return (top / bottom).item(), max(spread, self.form.unit / count**0.5)

    def of_slices(self, others: list[int]) -> Tensor:
        """The slope of each slice in its standard deviations, half its own and half all slices'."""
        top, bottom, null = self._sums(others)
        known = bottom > 0
        if not known.any():
            return torch.zeros_like(bottom)
        beta = torch.where(known, top / bottom, 0.0)
        own = torch.where(known, (null / bottom).square().mean(dim=0), 0.0) if len(null) else beta * 0
        count = self._telling.sum(dim=others).clamp_min(1)
        sd = torch.maximum((own + own[known].mean()) / 2, self.form.unit**2 / count).sqrt()
        return beta.abs() / sd

    @property
    def _telling(self) -> Tensor:
        """Entries whose truth is far enough from zero to show a factor."""
        return self.truth.abs() > NEAR_ZERO * self.form.tiny

    def _sums(self, over: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        weight = torch.where(self._telling, self.truth / self.noise.sigma**2, 0.0)
        if not over:
            return self.error * weight, self.truth * weight, self.noise.null * weight
        top, bottom = (self.error * weight).sum(dim=over), (self.truth * weight).sum(dim=over)
        return top, bottom, (self.noise.null * weight).sum(dim=[d + 1 for d in over])


STEPS = (2.0**-5, 2.0**-7, 2.0**-9, 2.0**-11)
"""Shares of the inputs' typical size by which they move, each one halved once, until a slope is known. Below
the last one the rounding of ordinary outputs alone is a thousandth of the slope."""

MOST = 3.0
"""Entries of the direction are cut at so many root mean squares: one of them must not take the whole step."""

FAINT = 0.1
"""Share of the root mean square of an input's gradient below which an entry of it is nearly zero."""

ROUNDED = FAINT / 4
"""The same that rounding to eight binary digits inside backward may leave of such an entry."""

LEAST_SIZE = 2.0**-10
"""Typical size of an input whose values are all smaller, zeros say: a step needs digits to be one."""

ROOM = 0.5
"""Share of the way to the end of what is valid that the longest step may take."""

TRUSTED = 1e-3
"""Relative difference below which a slope in float32 is no error."""

SAFETY = 10.0
"""Times its own measured error that a slope must be off as well."""

HALVES = 0.6
"""A smooth map's one-sided slopes differ by half as much after half the step, a little more with what higher
derivatives do; those at a kink stay apart."""


class Weighed(NamedTuple):
    """What the outputs weigh, and the rounding of that."""

    sum: Tensor
    """Σ u·y, float64."""
    rounding: Tensor
    """eps · Σ |u·y|, eps of each output's dtype: how far the sum may be off by the outputs' last rounding."""


@dataclass(frozen=True)
class AlongGradient:
    """The slope that backward claims along its own gradient, and the one that forward has."""

    claimed: float
    measured: float
    error: float
    """How far `measured` may be off: what half the step changes, and the rounding of the outputs over it."""
    smooth: bool
    """The one-sided slopes approach each other as the step does."""
    rounded: float = 0.0
    """How far `claimed` may be off by backward's rounding, where what it sums nearly cancels."""

    @property
    def allowed(self) -> float:
        """Absolute difference that is no error."""
        largest = max(abs(self.claimed), abs(self.measured))
        return max(TRUSTED * largest, SAFETY * self.error, self.rounded)

    @property
    def is_known(self) -> bool:
        """Whether the slope has any digits to hold the claim against."""
        return bool(is_known(self.measured, self.claimed, SAFETY * self.error))

    @property
    def is_right(self) -> bool:
        """Whether the slope is known, and the claimed one."""
        return self.is_known and abs(self.claimed - self.measured) <= self.allowed

    @property
    def is_wrong(self) -> bool:
        """Whether the slope is known, forward smooth, and the claim another one."""
        return self.smooth and self.is_known and not self.is_right

    @property
    def hides(self) -> float:
        """Relative error that could hide."""
        return self.allowed / abs(self.measured) if self.measured else torch.inf


def along_gradient(
    value: Callable[[Sequence[Tensor]], Weighed | None],
    primals: Sequence[Tensor],
    gradients: Sequence[Tensor],
    rooms: Sequence[Tensor],
    *,
    faint: bool = False,
) -> AlongGradient | None:
    """Measure the slope of a scalar function of native tensors; None where it refuses or nothing moves.

    Along the gradient; `faint`: along the signs of the entries' places, where the gradient is nearly zero.

    `value` sums in float64 what the outputs weigh; `gradients` are what backward gave for it. `rooms` says of
    each entry how far it may move and stay valid (float64, shaped like the primals, infinite for any way).
    The best of the steps counts: the first whose error is no matter, else the one with the least.
    """
    way = _faintly if faint else _along
    directions = [
        _direction(x, way(g.double()), room) for x, g, room in zip(primals, gradients, rooms, strict=True)
    ]
    if not any(bool(d.any()) for d in directions):
        return None
    centre = value(primals)
    if centre is None:
        return None
    rounded = _rounded(gradients, directions) if faint else 0.0
    best: AlongGradient | None = None
    for step in STEPS:
        pair = [_slope(value, primals, gradients, directions, s) for s in (step, step / 2)]
        far, near = pair
        if far is None or near is None:
            continue
        found = replace(_extrapolated(far, near, centre), rounded=rounded)
        if best is None or (found.is_known, found.smooth, -found.error) > (
            best.is_known,
            best.smooth,
            -best.error,
        ):
            best = found
        if found.smooth and SAFETY * found.error <= TRUSTED * abs(found.measured):
            break
    return best


class _Slope(NamedTuple):
    """What one step shows."""

    step: float
    claimed: float
    above: Weighed
    below: Weighed

    @property
    def central(self) -> float:
        return (self.above.sum - self.below.sum).item() / (2 * self.step)

    @property
    def rounding(self) -> float:
        """Of a slope at this step."""
        return max(self.above.rounding.item(), self.below.rounding.item()) / self.step

    def gap(self, centre: Weighed) -> float:
        """Between the slopes on both sides."""
        return abs((self.above.sum - 2 * centre.sum + self.below.sum).item()) / self.step


def _slope(
    value: Callable[[Sequence[Tensor]], Weighed | None],
    primals: Sequence[Tensor],
    gradients: Sequence[Tensor],
    directions: Sequence[Tensor],
    step: float,
) -> _Slope | None:
    up, down = (
        [(x.double() + s * d).to(x.dtype) for x, d in zip(primals, directions, strict=True)]
        for s in (step, -step)
    )
    # By the steps that were really taken.
    moves = [(a.double() - b.double(), g.double()) for a, b, g in zip(up, down, gradients, strict=True)]
    claimed = sum((move * g).sum().item() for move, g in moves) / (2 * step)
    above, below = value(up), value(down)
    return None if above is None or below is None else _Slope(step, claimed, above, below)


def _extrapolated(far: _Slope, near: _Slope, centre: Weighed) -> AlongGradient:
    """The slope after a step and half of it; central differences err as the square of the step."""
    change = near.central - far.central
    rounding = near.rounding + abs(near.claimed - far.claimed)
    noise = 2 * near.rounding + TRUSTED * abs(near.central)
    smooth = near.gap(centre) <= HALVES * far.gap(centre) + noise
    if not smooth:
        return AlongGradient(near.claimed, near.central, abs(change) + rounding, smooth)
    # A third of the change is what is left after the smaller step.
    return AlongGradient(near.claimed, near.central + change / 3, abs(change) / 3 + rounding, smooth)


def _along(gradient: Tensor) -> Tensor:
    """The gradient in units of its root mean square, cut; zero where it is none."""
    size = gradient.square().mean().sqrt()
    known = bool(size > 0) and bool(size.isfinite())
    return (gradient / size).clamp(-MOST, MOST) if known else torch.zeros_like(gradient)


def _faintly(gradient: Tensor) -> Tensor:
    """One of either sign, by turns, where the gradient is nearly zero, and zero elsewhere."""
    nearly_zero = gradient.abs() <= FAINT * gradient.square().mean().sqrt()
    signs = torch.ones(gradient.numel(), dtype=torch.float64, device=gradient.device)
    signs[2::3] = -1.0  # by threes: neighbours in rows and in columns differ
    return torch.where(nearly_zero, signs.reshape(gradient.shape), 0.0)


def _rounded(gradients: Sequence[Tensor], directions: Sequence[Tensor]) -> float:
    """How far the sum of a gradient along a direction may be off by what each entry may, independently."""
    pairs = zip(gradients, directions, strict=True)
    squares = (g.double().square().mean() * d.square().sum() for g, d in pairs if g.numel())
    return ROUNDED * math.sqrt(sum(float(s) for s in squares if s.isfinite()))


def _direction(x: Tensor, way: Tensor, room: Tensor) -> Tensor:
    typical = x.double().abs().mean().clamp_min(LEAST_SIZE)
    longest = ROOM * room / STEPS[0]
    return (way * typical).clamp(-longest, longest)
