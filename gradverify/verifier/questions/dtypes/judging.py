"""The judgement of a value in a native dtype: its truth, what rounding explains, what no formula may lose.

What a formula's own operations round away explains what they lose, and excuses it only up to a cap: half of
the dtype's digits of the values beside it, what rounded inputs do to the truth, and what vanishes beside
numbers of order one. Beyond it the formula is unstable (Higham, *Accuracy and Stability of Numerical
Algorithms*, 2002: forward error against condition).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradverify.model import Closeness
from gradverify.verifier.questions.dtypes.calls import NativeCall, Truth, Value
from gradverify.verifier.questions.dtypes.formats import (
    LIMIT,
    SINGLE_UNIT,
    Format,
    beyond_rounding,
    of_correct_rounding,
    root_mean_square,
)

CERTAIN = 8.0
"""Times what no formula may lose from which an error is one without doubt."""

MOVES = 64.0
"""Standard deviations of what rounded inputs do to the truth that are no mistake."""

UNSEEN = 64.0
"""Roundings of numbers of order one that vanish beside them."""


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
    worst: float = 0.0
    """In units of the limit."""
    hides: float | None = None
    """Relative error of all entries that could have hidden."""
    share: float = 0.0
    """Of entries that are not correctly rounded, in 16 bits."""
    unstable: bool = False
    """Rounding of its own operations explains it, and is beyond what any stable formula loses."""
    gross: bool = False
    """It is far beyond that, whatever explains it."""

    @property
    def off(self) -> Tensor:
        """The error of each entry."""
        return (self.got - self.truth).abs()


Noise = Callable[[], Sequence[Tensor] | None]
"""What a call rounds away, seen from outside: for each value draws × shape, in units of the roundoff."""


def judge_call(
    call: NativeCall,
    truth: Truth,
    *,
    reach: float,
    briefly: bool = False,
    outside: Noise = lambda: None,
) -> list[Judgement]:
    """Judge every value of one native call.

    `reach` is the largest magnitude that inputs may have. `briefly`: only what no formula may lose counts,
    since rounding was measured at typical values.
    """
    absorbed = _absorbed(call, truth.values, reach)
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
        judged = held if briefly else _by_rounding(held, _noises(call, truth, number, outside))
        found.append(_under_the_cap(judged, truth, number, absorbed[number], within))
    return found


def _noises(call: NativeCall, truth: Truth, number: int, outside: Noise) -> Iterator[Tensor | None]:
    """What rounding inside does to a value: without measuring, by its operations, from outside."""
    yield None
    seen = truth.noise[number]
    if seen is not None:
        yield seen
    if seen is None or call.hides:
        around = outside()
        yield from () if around is None else (around[number],)


def _by_rounding(held: Judgement, noises: Iterator[Tensor | None]) -> Judgement:
    """By the tests of `formats.py`, as far as noise explains the error; coarse where none was measured."""
    form, measured = held.form, False
    for noise in noises:
        if form.is_short:
            ratios = of_correct_rounding(held.got, held.truth, form, noise)
            held = replace(held, share=(~(ratios <= LIMIT)).double().mean().item())
            if not held.share:
                best = Closeness.CORRECT
                return replace(held, closeness=best, worst=ratios.max().item(), hides=form.unit)
        if noise is not None or not form.is_short:
            worst, hides = beyond_rounding(held.got, held.truth, form, noise)
            held = replace(held, worst=worst, hides=hides)
            if worst <= 1:
                return replace(held, closeness=Closeness.ROUNDED if form.is_short else Closeness.WITHIN)
        measured |= noise is not None
    return replace(held, closeness=Closeness.WRONG) if measured else held


def _under_the_cap(held: Judgement, truth: Truth, number: int, absorbed: Tensor, within: Tensor) -> Judgement:
    """The same with what no formula may lose."""
    if held.closeness is Closeness.CORRECT:
        return held
    form, off = held.form, held.off
    cap = form.unit**0.5 * typical(held.truth) + absorbed + UNSEEN * form.smallest
    if bool((off > cap).any()):
        moved = truth.moved(form.unit)
        of_inputs = torch.where(within, moved[number], 0.0).square().mean(dim=0).sqrt() if moved else 0.0
        cap = cap + MOVES * of_inputs
    beyond = (off / cap).max().item()
    if held.closeness is Closeness.WRONG:
        return replace(held, gross=beyond > CERTAIN)
    if beyond > 1:
        wrong = replace(held, closeness=Closeness.WRONG, worst=beyond)
        return replace(wrong, unstable=True, gross=beyond > CERTAIN)
    if held.closeness is Closeness.COARSE:
        return replace(held, closeness=Closeness.COARSE, worst=beyond, hides=form.unit**0.5)
    return held


def typical(truth: Tensor) -> Tensor:
    """The size of each entry with those of its row and of the whole (the truth's shape)."""
    size = truth.abs() + root_mean_square(truth)
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
        size = torch.where(size > 0, size, root_mean_square(size))
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
    squares = judgement.off.square()
    best: tuple[float, tuple[int, int]] = (MOST_OF_IT * squares.sum().item(), (-1, -1))
    for dimension, count in enumerate(squares.shape):
        if squares.dim() > 1 and count > 1:
            each = squares.sum(dim=[d for d in range(squares.dim()) if d != dimension])
            best = max(best, (each.max().item(), (dimension, int(each.argmax()))))
    return None if best[1][0] < 0 else best[1]


MOST_OF_IT = 0.5
"""Share of the square error in one slice for it to be named."""
