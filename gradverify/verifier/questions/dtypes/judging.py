"""The judgement of a value in a native dtype: what rounding explains, and what no formula may lose.

What rounding to a format may do (`precision.md` §3): by test A every entry is the truth, correctly rounded,
up to float32's noise inside; by test B rounding of intermediates to the format explains the error, of each
entry, each slice and the whole.

What a formula's own operations round away explains what they lose, and excuses it only up to a cap: half of
the dtype's digits of the values beside it, what rounded inputs do to the truth, and what vanishes beside
numbers of order one. Beyond it the formula is unstable (Higham, *Accuracy and Stability of Numerical
Algorithms*, 2002: forward error against condition).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradverify.model import Closeness
from gradverify.verifier.questions.dtypes.calls import SINGLE_UNIT, Format, NativeCall, Truth, Value

CERTAIN = 8.0
"""Times what no formula may lose from which an error is one without doubt."""

ALLOWED = 64.0
"""Standard deviations of what rounded inputs do to the truth, and roundings of numbers of order one that
vanish beside them, that are no mistake."""


SLIGHT = 1e-2
"""Share of the largest entry by which a gradient may be off in a dtype that nobody listed: a warning up to
here, an error beyond (`gradverify explain GV601`)."""


@dataclass(frozen=True)
class Judgement:
    """What is known of one value at one point."""

    value: Value
    form: Format
    got: Tensor
    truth: Tensor
    """Zero, as `got` is, where nothing is judged."""
    exact: Tensor
    """The truth at all entries."""
    lost: Tensor
    """bool: entries that are not finite where the truth is a number of the dtype."""
    closeness: Closeness = Closeness.COARSE
    """Not judged where it is beyond what any stable formula loses, and rounding of its own explains it."""
    worst: float = 0.0
    """In units of the limit."""
    hides: float | None = None
    """Relative error of all entries that could have hidden."""
    share: float = 0.0
    """Of entries that are not correctly rounded, in 16 bits."""
    gross: bool = False
    """It is far beyond what any stable formula loses, whatever explains it."""
    unexplained: bool = False
    """So is a gradient, and not all that rounds was seen: a mistake, or code that rounds unseen."""

    @property
    def off(self) -> Tensor:
        """The error of each entry."""
        return (self.got - self.truth).abs()

    @property
    def is_large(self) -> bool:
        """Whether an entry is off by more than a hundredth of the largest one."""
        return bool((self.off > SLIGHT * self.truth.abs().max()).any())


def judge_call(call: NativeCall, truth: Truth, *, briefly: bool = False) -> list[Judgement]:
    """Judge every value of one native call.

    `briefly`: only what no formula may lose counts, since rounding was measured at typical values.
    """
    absorbed = _absorbed(call, truth)
    overflows, found = False, []
    for number, (value, got, wanted) in enumerate(zip(call.values, call.got, truth.values, strict=True)):
        if wanted.shape != got.shape or not wanted.numel():
            continue
        known = wanted.abs() <= call.form.largest  # False for a truth that is not finite itself
        within = known & got.isfinite()
        # Where an output is beyond the dtype by right, what its gradient is made of may be.
        lost = known & ~within if value.output is not None or not overflows else torch.zeros_like(known)
        overflows |= value.output is not None and bool((~known).any())
        mine, exact = (torch.where(within, t, 0.0) for t in (got, wanted))
        held = Judgement(value, call.form, mine, exact, wanted, lost)
        judged = held if briefly else _by_rounding(held, truth, number, hides=call.hides)
        if value.output is None and judged.closeness is Closeness.WRONG:
            judged = _by_rounding(_beside_kinks(held, truth, number), truth, number, hides=call.hides)
        judged = _under_the_cap(judged, truth, number, absorbed[number], within)
        suspected = judged.gross and judged.value.output is None
        unexplained = suspected and (call.hides or truth.noise[number] is None)
        found.append(replace(judged, unexplained=unexplained))
    return found


def has_other_signs(call: NativeCall, truth: Truth) -> bool:
    """Whether an output is the truth but for signs: a factorization may have either, and its gradient too."""
    for value, got, wanted in zip(call.values, call.got, truth.values, strict=True):
        if value.output is not None and wanted.shape == got.shape and wanted.isfinite().all():
            room = call.form.unit**0.5 * typical(wanted)
            alike = (got.abs() - wanted.abs()).abs() <= room
            if bool(alike.all()) and bool(((got - wanted).abs() > CERTAIN * room).any()):
                return True
    return False


def _beside_kinks(held: Judgement, truth: Truth, number: int) -> Judgement:
    """The same with the truth for what lies between its values at inputs a rounding away, if these jump."""
    moved = truth.moved(2 * held.form.unit)
    if not moved:
        return held
    low, high, off = moved[number].amin(dim=0), moved[number].amax(dim=0), held.got - held.truth
    room = ALLOWED * held.form.unit * typical(held.truth)
    at_kink = (
        (high - low > held.form.unit**0.5 * typical(held.truth)) & (low - room <= off) & (off <= high + room)
    )
    return replace(held, got=torch.where(at_kink, held.truth, held.got))


def _by_rounding(held: Judgement, truth: Truth, number: int, *, hides: bool) -> Judgement:
    """By the tests of `formats.py`, first as any computation rounds, then as its operations were seen to.

    Coarse where none was seen, or numbers came from elsewhere.
    """
    form = held.form
    for noise in _noises(truth, number):
        if form.is_short:
            ratios = of_correct_rounding(held.got, held.truth, form, noise)
            held = replace(held, share=(~(ratios <= LIMIT)).double().mean().item())
            if not held.share:
                best = Closeness.CORRECT
                return replace(held, closeness=best, worst=ratios.max().item(), hides=form.unit)
        if noise is not None or not form.is_short:
            worst, hidden = beyond_rounding(held.got, held.truth, form, noise)
            best = Closeness.ROUNDED if form.is_short else Closeness.WITHIN
            held = replace(held, worst=worst, hides=hidden, closeness=best if worst <= 1 else Closeness.WRONG)
            if worst <= 1:
                return held
    is_told = held.value.output is None and bool(sixteen_bits(held))  # forward may quantise
    is_seen = (noise is not None and not hides) or is_told
    return held if is_seen else replace(held, closeness=Closeness.COARSE)


def _noises(truth: Truth, number: int) -> Iterator[Tensor | None]:
    """None, then what was measured, which takes calls, if anything was."""
    yield None
    if truth.noise[number] is not None:
        yield truth.noise[number]


def _under_the_cap(held: Judgement, truth: Truth, number: int, absorbed: Tensor, within: Tensor) -> Judgement:
    """The same with what no formula may lose."""
    if held.closeness is Closeness.CORRECT:
        return held
    form, off = held.form, held.off
    cap = form.unit**0.5 * typical(held.truth) + absorbed + ALLOWED * form.smallest
    if bool((off > cap).any()):
        moved = truth.moved(form.unit)
        of_inputs = torch.where(within, moved[number], 0.0).square().mean(dim=0).sqrt() if moved else 0.0
        cap = cap + ALLOWED * of_inputs
    beyond = (off / cap).max().item()
    held = replace(held, gross=beyond > CERTAIN)
    if beyond > 1 and held.closeness is not Closeness.WRONG:
        return replace(held, closeness=Closeness.UNKNOWN, worst=beyond)
    is_coarse = held.closeness is Closeness.COARSE
    return replace(held, worst=beyond, hides=form.unit**0.5) if is_coarse else held


def typical(truth: Tensor) -> Tensor:
    """The size of each entry with those of its row and of the whole (the truth's shape)."""
    size = truth.abs() + root_mean_square(truth)
    return size + truth.square().mean(dim=-1, keepdim=True).sqrt() if truth.dim() else size


def _absorbed(call: NativeCall, truth: Truth) -> list[Tensor]:
    """What vanishes beside numbers of order one, for each value of a call (absolute, its shape).

    `1 + erf(x)` is 0 below -6, and `1 - y * y` where tanh is saturated: right formulas are so, and no loss
    is large beside the outputs that they have elsewhere. Grad_outputs are of order one.
    """
    count, form = len(call.problem.output_positions), call.form
    outputs, gradients = truth.values[:count], truth.values[count:]
    largest = max([1.0, *(t.abs().nan_to_num(0.0, 0.0, 0.0).max().item() for t in outputs if t.numel())])
    found = [torch.full_like(t, ALLOWED * form.unit) for t in outputs]
    for x, t in zip(call.exact.primals, gradients, strict=True):
        size = x.detach().abs().to(device="cpu", dtype=torch.float64)
        size = torch.where(size > 0, size, root_mean_square(size))
        size = size[..., None] if size.dim() < t.dim() else size
        found.append(ALLOWED * form.unit * largest / (torch.zeros_like(t) + size).clamp_min(form.smallest))
    return found


def sixteen_bits(judgement: Judgement) -> str:
    """The dtype of 16 bits whose numbers a longer value consists of where the truth does not; else empty.

    At the least three entries: by chance one is such a number, once in 2^13.
    """
    got, truth = judgement.got, judgement.truth
    for name in () if judgement.form.unit > SINGLE_UNIT else ("bfloat16", "float16"):
        dtype: torch.dtype = getattr(torch, name)
        telling = (truth.to(dtype).double() != truth) & (got != 0)
        if int(telling.sum()) >= 3 and (got.to(dtype).double() == got)[telling].all():
            return name
    return ""


ALLOWANCE = 64.0
"""Standard deviations of float32's noise inside that are allowed: at 16 right kernels failed."""

LIMIT = 1.05
"""The ratio up to which a value counts as correctly rounded: 1 is the definition; right ones reach 1.04."""

FLOOR = 0.25
"""Noise is at least this share of the unit times the row's and the tensor's root mean square: a structural
zero may come out as rounding of its neighbours."""

NEAR_ZERO = 128.0
"""Half-spacings of subnormal numbers below which a truth says nothing about a factor."""

FEWEST = 6
"""Entries that a slice must have to be judged as one."""


def half_ulp(size: Tensor, form: Format) -> Tensor:
    """How far a correctly rounded value may be from the exact one of that magnitude (float64, its shape).

    Half the distance between two neighbours of the binade, or of the subnormal numbers.
    """
    exponent = torch.frexp(size).exponent.to(torch.float64)  # size = m * 2^exponent, m in [1/2, 1)
    return torch.where(size > 0, torch.exp2(exponent - 1) * form.unit, 0.0).clamp_min(form.tiny)


def root_mean_square(x: Tensor) -> float:
    """Of all entries; 0 where there are none."""
    return x.square().mean().sqrt().item() if x.numel() else 0.0


def sigma_inside(truth: Tensor, unit: float, smallest: float, noise: Tensor | None) -> Tensor:
    """Standard deviation (absolute, the truth's shape) of a computation, before its last rounding.

    `noise` (draws × shape) is what was measured, in units of `unit`; it adds to what any computation has.
    """
    squares = truth**2
    of_rows = squares.mean(dim=-1, keepdim=True) if squares.dim() else squares
    variance = (FLOOR * unit) ** 2 * (of_rows + squares.mean()) + smallest**2
    return (variance if noise is None else variance + (unit * noise).square().mean(dim=0)).sqrt()


def of_correct_rounding(value: Tensor, truth: Tensor, form: Format, noise: Tensor | None = None) -> Tensor:
    """Test A: the error of each entry in units of what correct rounding to a short format allows.

    NaN only where something was NaN.
    """
    slack = ALLOWANCE * sigma_inside(truth, SINGLE_UNIT, torch.finfo(torch.float32).tiny, noise)
    return (value - truth).abs() / (half_ulp(truth.abs() + slack, form) + slack)


@dataclass(frozen=True)
class Limits:
    """In standard deviations of the noise; set where right kernels of many kinds stay below."""

    entry: float
    slice: float
    whole: float
    slope: float
    """Of the error on the truth: a constant factor far below the noise of one entry shows over many."""


SHORT = Limits(entry=40.0, slice=15.0, whole=4.0, slope=12.0)
"""For 16 bits: right kernels reached 37, 10, 0.94 and 7.8."""

SINGLE = Limits(entry=200.0, slice=80.0, whole=20.0, slope=torch.inf)
"""For float32, where mistakes are 10^4 roundings away, and a biased sum may tilt a right gradient."""


def beyond_rounding(
    value: Tensor, truth: Tensor, form: Format, noise: Tensor | None
) -> tuple[float, float | None]:
    """Test B: the error in units of what rounding intermediates explains, infinite where that is no number.

    With it the relative error of all entries by one factor that could hide; None where the truth is zero. The
    result's own rounding is uniform within u of its value: variance (u*T)^2/3.
    """
    limits = SHORT if form.is_short else SINGLE
    inside = sigma_inside(truth, form.unit, form.tiny, noise)
    sigma = (inside**2 + (form.unit * truth) ** 2 / 3).sqrt()
    z, size = (value - truth) / sigma, root_mean_square(truth)
    each, hides = [z.abs().max().item() / limits.entry], None
    if size > 0:
        slope, spread = _slope(z, truth, sigma, form, noise)
        each += [root_mean_square(z) / limits.whole, abs(slope) / spread / limits.slope]
        each += [one / limits.slice for one in _of_slices(z)]
        hides = min(limits.whole * root_mean_square(sigma) / size, limits.slope * spread)
    return (math.inf if any(map(math.isnan, each)) else max(each)), hides


def _of_slices(z: Tensor) -> Iterator[float]:
    """The root mean square of the worst slice of each dimension."""
    for dimension, count in enumerate(z.shape):
        others = [d for d in range(z.dim()) if d != dimension]
        if others and z.numel() // count >= FEWEST:
            yield z.square().mean(dim=others).sqrt().max().item()


def _slope(
    z: Tensor, truth: Tensor, sigma: Tensor, form: Format, noise: Tensor | None
) -> tuple[float, float]:
    """The regression of the error on the truth, weighted by the noise, and its standard deviation.

    Of a truth that is far enough from zero to show a factor.
    """
    weight = torch.where(truth.abs() > NEAR_ZERO * form.tiny, truth / sigma, 0.0)
    bottom = weight.square().sum().item()
    if not bottom > 0:
        return 0.0, 1.0
    spread = form.unit / int((weight != 0).sum()) ** 0.5
    if noise is not None:
        null = form.unit * (noise / sigma * weight).reshape(len(noise), -1).sum(dim=1) / bottom
        spread = max(spread, null.square().mean().sqrt().item())
    return (z * weight).sum().item() / bottom, spread
