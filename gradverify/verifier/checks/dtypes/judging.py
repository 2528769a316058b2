"""The judgement of a value in a native dtype: its truth, what rounding explains, what no formula may lose.

What a formula's own operations round away explains what they lose, and excuses it only up to a cap: half of
the dtype's digits of the values beside it, what rounded inputs do to the truth, and what vanishes beside
numbers of order one. Beyond it the formula is unstable (Higham, *Accuracy and Stability of Numerical
Algorithms*, 2002: forward error against condition).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gradverify.model import Closeness
from gradverify.verifier.checks.dtypes.calls import NativeCall, Truth, Value
from gradverify.verifier.checks.dtypes.formats import (
    SINGLE_UNIT,
    Explained,
    Format,
    Rounding,
    correct_rounding,
    explained,
)

CERTAIN = 8.0
"""Times what no formula may lose from which an error is one without doubt."""

COARSE_LEAST = 0.05
"""Share of the typical value below which an error is in doubt where no operation is seen."""

MOVES = 64.0
"""Standard deviations of what rounded inputs do to the truth that are no mistake."""

UNSEEN = 64.0
"""Roundings of numbers of order one that vanish beside them."""


@dataclass(frozen=True)
class Judgement:
    """What is known of one value at one point."""

    value: Value
    form: Format
    closeness: Closeness
    got: Tensor
    truth: Tensor
    """Zero, as `got` is, where nothing is judged."""
    worst: float
    """In units of the limit."""
    hides: float | None = None
    """Relative error of all entries that could have hidden."""
    rounding: Rounding | None = None
    """Test A, for 16 bits."""
    sure: bool = True
    """False for a wrong value whose limits are coarse."""
    unstable: bool = False
    """The rounding of its own operations explains it, and is beyond what any stable formula loses."""
    gross: bool = False
    """It is far beyond that, whatever explains it."""
    lost: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    """bool: entries that are not finite where the truth is a number of the dtype."""
    exact: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    """The truth at all entries."""


@dataclass(frozen=True)
class _Held:
    """One value held against its truth."""

    call: NativeCall
    number: int
    """Its place among the values of a call."""
    got: Tensor
    exact: Tensor
    within: Tensor
    """bool: entries that are judged; elsewhere both are zero."""
    absorbed: Tensor
    """What vanishes beside numbers of order one, absolute."""
    whole: Truth

    @property
    def form(self) -> Format:
        return self.call.form

    @property
    def off(self) -> Tensor:
        return (self.got - self.exact).abs()

    def capped(self) -> tuple[float, Tensor]:
        """The error at worst in units of what no formula may lose, NaN where unknown; and that, absolute."""
        cap = self.form.unit**0.5 * typical(self.exact) + self.absorbed + UNSEEN * self.form.smallest
        if bool((self.off > cap).any()):
            runs = self.whole.moved(self.form.unit)
            moved = [torch.where(self.within, run[self.number], 0.0) - self.exact for run in runs]
            cap = cap + MOVES * (torch.stack(moved).square().mean(dim=0).sqrt() if moved else torch.nan)
        return (self.off / cap).max().item(), cap

    def judged(self, closeness: Closeness, worst: float, hides: float | None = None) -> Judgement:
        """What was found of it."""
        value = self.call.values[self.number]
        return Judgement(value, self.form, closeness, self.got, self.exact, worst, hides)


def judge_call(
    call: NativeCall, truth: Truth, *, reach: float | None = None, briefly: bool = False
) -> list[Judgement]:
    """Judge every value of one native call.

    `reach` is the largest magnitude that inputs may have, by default that of the call. `briefly`: only what
    no formula may lose counts.
    """
    largest = (x.detach().abs().max().item() for x in call.exact.primals if x.numel())
    absorbed = _absorbed(call, truth.values, max(largest, default=1.0) if reach is None else reach)
    overflows, found = False, []
    for number, (value, got, wanted) in enumerate(zip(call.values, call.got, truth.values, strict=True)):
        if wanted.shape != got.shape or not wanted.numel():
            continue
        known = wanted.abs() <= call.form.largest  # False for a truth that is not finite itself
        within = known & got.isfinite()
        mine, exact = (torch.where(within, t, 0.0) for t in (got, wanted))
        held = _Held(call, number, mine, exact, within, absorbed[number], truth)
        judged = _by_the_cap(held, briefly=True) if briefly else _judged(held)
        # Where an output is beyond the dtype by right, what its gradient is made of may be.
        lost = known & ~within if value.output is not None or not overflows else torch.zeros_like(known)
        overflows |= value.output is not None and bool((~known).any())
        found.append(replace(judged, lost=lost, exact=wanted))
    return found


def _by_the_cap(held: _Held, *, briefly: bool) -> Judgement:
    """Where the noise inside is not known: half of the dtype's digits, and what moved inputs do.

    `briefly`: it was known at typical values, so that it is a matter of these ones.
    """
    ratio, cap = held.capped()
    if math.isnan(ratio):
        return held.judged(Closeness.UNKNOWN, 0.0)
    if ratio <= 1:
        return held.judged(Closeness.COARSE, ratio, held.form.unit**0.5)
    far = bool((held.off > torch.maximum(CERTAIN * cap, COARSE_LEAST * typical(held.exact))).any())
    wrong = held.judged(Closeness.WRONG, ratio)
    return replace(wrong, unstable=briefly, sure=ratio > CERTAIN if briefly else far, gross=briefly or far)


def _judged(held: _Held) -> Judgement:
    """Without measured noise first, which costs nothing; then with it, then by the cap."""
    form, rounding = held.form, None
    for measured in (False, True):
        noise = held.whole.noise[held.number] if measured else None
        if measured and noise is None:
            return replace(_by_the_cap(held, briefly=False), rounding=rounding)
        if form.is_short:
            rounding = correct_rounding(held.got, held.exact, form, noise)
            if rounding.correct:
                found = held.judged(Closeness.CORRECT, rounding.worst, form.unit)
                return replace(found, rounding=rounding)
        if measured or not form.is_short:
            by_rounding = explained(held.got, held.exact, form, noise)
            if by_rounding.ok:
                return _within_the_cap(held, by_rounding, rounding)
    beyond, _ = held.capped()
    wrong = held.judged(Closeness.WRONG, by_rounding.worst)
    return replace(wrong, rounding=rounding, gross=beyond > CERTAIN)


def _within_the_cap(held: _Held, found: Explained, rounding: Rounding | None) -> Judgement:
    beyond, _ = held.capped()
    if beyond > 1:
        wrong = held.judged(Closeness.WRONG, beyond)
        return replace(wrong, rounding=rounding, unstable=True, sure=beyond > CERTAIN, gross=True)
    closeness = Closeness.ROUNDED if held.form.is_short else Closeness.WITHIN
    return replace(held.judged(closeness, found.worst, found.hides), rounding=rounding)


def typical(truth: Tensor) -> Tensor:
    """The size of each entry with those of its row and of the whole (the truth's shape)."""
    size = truth.abs() + truth.square().mean().sqrt()
    return size + truth.square().mean(dim=-1, keepdim=True).sqrt() if truth.dim() else size


def _absorbed(call: NativeCall, values: Sequence[Tensor], reach: float) -> list[Tensor]:
    """What vanishes beside numbers of order one, for each value of a call (absolute, its shape).

    `1 + erf(x)` is 0 below -6, and `1 - y * y` where tanh is saturated: right formulas are so, and no loss
    is large beside the outputs that they have elsewhere. `reach` is the largest magnitude that inputs may
    have: where they are all tiny, so are the numbers that count. Grad_outputs are of order one.
    """
    outputs, form = len(call.problem.output_positions), call.form
    one = min(1.0, reach)
    largest = [t.abs().nan_to_num(0.0, 0.0, 0.0).max().item() for t in values[:outputs] if t.numel()]
    found = [torch.full_like(t, UNSEEN * form.unit * one) for t in values[:outputs]]
    for x, t in zip(call.exact.primals, values[outputs:], strict=True):
        size = x.detach().abs().to(device="cpu", dtype=torch.float64)
        size = torch.where(size > 0, size, size.square().mean().sqrt()) if size.numel() else size
        size = size[..., None] if size.dim() < t.dim() else size
        slope = max([one, *largest]) / (torch.zeros_like(t) + size).clamp_min(form.smallest)
        found.append(UNSEEN * form.unit * slope)
    return found


def sixteen_bits(judgement: Judgement, fewest: int = 3) -> str:
    """The dtype of 16 bits whose numbers a longer value consists of where the truth does not; else empty.

    At the least so many entries: by chance one is such a number, once in 2^13.
    """
    got, truth = judgement.got, judgement.truth
    for name in () if judgement.form.unit > SINGLE_UNIT else ("bfloat16", "float16"):
        dtype: torch.dtype = getattr(torch, name)
        telling = (truth.to(dtype).double() != truth) & (got != 0)
        if int(telling.sum()) >= fewest and (got.to(dtype).double() == got)[telling].all():
            return name
    return ""


def factor_of(judgement: Judgement) -> float | None:
    """The one factor that explains the error at every entry; None where none does."""
    got, truth, unit = judgement.got, judgement.truth, judgement.form.unit
    size = truth.square().sum()
    if int((truth != 0).sum()) < 3 or not size > 0:  # a factor explains any error at one entry
        return None
    slope = ((got - truth) * truth).sum() / size
    left = (got - truth - slope * truth).square().mean()
    explains = left < LEFT_OVER * (got - truth).square().mean() + (2 * unit * truth).square().mean()
    return 1 + float(slope) if bool(explains) and abs(float(slope)) > CLEAR * unit else None


LEFT_OVER = 1e-3
"""Share of the mean square error that one factor may leave, beside rounding, if the error is proportional."""

CLEAR = 2.0
"""Roundings of the dtype from which a constant factor is named."""


def worst_slice(judgement: Judgement) -> tuple[int, int] | None:
    """(dimension, index) of the slice that holds most of the square error; None where none does."""
    squares = (judgement.got - judgement.truth).square()
    best: tuple[float, tuple[int, int]] = (MOST_OF_IT * squares.sum().item(), (-1, -1))
    for dimension, count in enumerate(squares.shape):
        if squares.dim() > 1 and count > 1:
            each = squares.sum(dim=[d for d in range(squares.dim()) if d != dimension])
            best = max(best, (each.max().item(), (dimension, int(each.argmax()))))
    return None if best[1][0] < 0 else best[1]


MOST_OF_IT = 0.5
"""Share of the square error in one slice for it to be named."""
