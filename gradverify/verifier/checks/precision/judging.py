"""From a value in a native dtype, its truth and the noise to a judgement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gradverify.model import Closeness
from gradverify.verifier.checks.precision.conditioning import (
    absorbed_by_ones,
    allowed_error,
    largest_input,
    typical,
)
from gradverify.verifier.checks.precision.native import NativeCall, Value
from gradverify.verifier.checks.precision.scatter import Runs, Scatter
from gradverify.verifier.numerics.precision.explained import (
    SHORT,
    SINGLE,
    Explained,
    Rounding,
    correct_rounding,
    explained,
)
from gradverify.verifier.numerics.precision.formats import SINGLE_UNIT, Format
from gradverify.verifier.numerics.precision.spread import Noise, inside_noise, least_noise, rounding_noise

FAR = 8.0
"""Times what no formula may lose from which an error is one without doubt."""

GUESSED = 20.0
"""Times the limit up to which an error is in doubt where some of the noise is a guess: grid_sample, right,
reached 4.5."""

COARSE_LEAST = 0.05
"""Share of the typical value below which a coarse error is always in doubt."""


@dataclass(frozen=True)
class Truth:
    """The values in float64, and computations of them on which noise can be measured."""

    values: tuple[Tensor, ...]
    scatters: tuple[Scatter, ...]
    """The strongest first."""


@dataclass(frozen=True)
class Judgement:
    """What is known of one value at one point."""

    value: Value
    closeness: Closeness
    got: Tensor
    truth: Tensor
    worst: float
    """In units of the limit."""
    hides: float | None = None
    """Relative error of all entries that could have hidden."""
    rounding: Rounding | None = None
    """Test A, for 16 bits."""
    found: Explained | None = None
    """Test B, where it was needed."""
    excused_by: str = ""
    """The computation whose own rounding explains what the strongest one's does not."""
    sure: bool = True
    """False for a wrong value whose limits are coarse."""
    unstable: bool = False
    """The rounding of its own operations explains it, and is beyond what any stable formula loses."""
    gross: bool = False
    """It is beyond that, whatever explains it."""
    lost: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    """bool: entries that are not finite where the truth is a number of the dtype."""
    exact: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    """The truth at all entries: `truth` is zero where nothing is judged."""


@dataclass(frozen=True)
class _Held:
    """One value held against its truth."""

    value: Value
    number: int
    """Its place among the values of a call."""
    got: Tensor
    truth: Tensor
    within: Tensor
    """bool: entries that are judged; elsewhere both are zero."""
    absorbed: Tensor
    """What vanishes beside numbers of order one, absolute."""

    def beyond(self, moved: Sequence[Tensor]) -> float:
        """The error at worst, in units of what no formula may lose; NaN where that is not known."""
        allowed = allowed_error(self.truth, self.absorbed, moved, self.value.form)
        return ((self.got - self.truth).abs() / allowed).max().item()

    def judged(self, closeness: Closeness, worst: float, hides: float | None, **more: Any) -> Judgement:  # noqa: ANN401
        """What was found of it."""
        return Judgement(self.value, closeness, self.got, self.truth, worst, hides, **more)

    def of(self, runs: Sequence[tuple[Tensor, ...]]) -> list[Tensor]:
        """The same value in other runs."""
        return [torch.where(self.within, run[self.number], 0.0) for run in runs]


def judge_call(
    call: NativeCall, truth: Truth, *, reach: float | None = None, briefly: bool = False
) -> list[Judgement]:
    """Judge every value of one native call.

    `reach` is the largest magnitude that inputs may have, by default that of the call. `briefly`: only what
    no formula may lose counts, so that no noise need be measured.
    """
    one = largest_input(call) if reach is None else reach
    judge = _capped if briefly else _near
    overflows = False
    found = []
    absorbed = absorbed_by_ones(call, truth.values, one)
    for number, (value, got, wanted) in enumerate(zip(call.values, call.got, truth.values, strict=True)):
        if wanted.shape != got.shape or not wanted.numel():
            continue
        known = wanted.abs() <= value.form.largest  # False for a truth that is not finite itself
        within = known & got.isfinite()
        both = (torch.where(within, got, 0.0), torch.where(within, wanted, 0.0))
        judged = judge(_Held(value, number, *both, within, absorbed[number]), truth.scatters)
        # Where an output is beyond the dtype by right, what its gradient is made of may be.
        lost = known & ~within if value.output is not None or not overflows else torch.zeros_like(known)
        overflows |= value.output is not None and bool((~known).any())
        found.append(replace(judged, lost=lost, exact=wanted))
    return found


def _capped(held: _Held, scatters: Sequence[Scatter]) -> Judgement:
    """By what no formula may lose alone; moved inputs are run where that may make a difference."""
    form = held.value.form
    ratio = held.beyond(())
    if ratio > 1 and scatters:
        moved = held.of(scatters[-1].moved(form.unit))
        ratio = held.beyond(moved) if moved else math.nan
    if ratio <= 1:
        return held.judged(Closeness.COARSE, ratio, form.unit**0.5)
    # What draws random numbers draws others in another dtype, which only a run that errs shows.
    for scatter in scatters:
        scatter.inside()
    if math.isnan(ratio) or any(scatter.draws for scatter in scatters):
        return held.judged(Closeness.UNKNOWN, 0.0, None)
    return held.judged(Closeness.WRONG, ratio, None, unstable=True, sure=ratio > FAR, gross=True)


def _near(held: _Held, scatters: Sequence[Scatter]) -> Judgement:
    form = held.value.form
    rounding = None
    if form.is_short:
        rounding = _correct(held, scatters)
        if rounding.correct:
            return held.judged(Closeness.CORRECT, rounding.worst, form.unit, rounding=rounding)
    else:
        least = explained(held.got, held.truth, rounding_noise(held.truth, (), (), form), form)
        if least.ok:
            return held.judged(Closeness.WITHIN, least.worst, SINGLE.whole * form.unit, found=least)
    return _explained(held, scatters, rounding)


def _correct(held: _Held, scatters: Sequence[Scatter]) -> Rounding:
    """Test A: without any measured noise first, which costs nothing."""
    form, truth = held.value.form, held.truth
    rounding = correct_rounding(held.got, truth, least_noise(truth, SINGLE_UNIT, form.tiny), form)
    for scatter in () if rounding.correct else scatters[:1]:
        runs = scatter.inside()
        noise = None if runs is None else inside_noise(truth, held.of(runs[0]), held.of(runs[1]))
        if noise is not None and _is_usable(noise, runs, scatter):
            return correct_rounding(held.got, truth, noise, form)
    return rounding


def _explained(held: _Held, scatters: Sequence[Scatter], rounding: Rounding | None) -> Judgement:
    """Test B by the strongest computation; where it fails, by the others."""
    form, truth = held.value.form, held.truth
    first: Explained | None = None
    guessed, beyond = False, math.nan
    for scatter in scatters:
        runs = scatter.rounding(form)
        noise = None if runs is None else rounding_noise(truth, held.of(runs[0]), held.of(runs[1]), form)
        if runs is None or noise is None or not _is_usable(noise, runs, scatter):
            continue
        found = explained(held.got, truth, noise, form)
        first, guessed = first or found, guessed or scatter.guessed
        beyond = held.beyond(held.of(runs[1]))
        if found.ok and beyond > 1:
            wrong = held.judged(Closeness.WRONG, beyond, None, found=first, unstable=True, gross=True)
            return replace(wrong, sure=beyond > FAR)
        if found.ok:
            return held.judged(
                Closeness.ROUNDED if form.is_short else Closeness.WITHIN,
                found.worst,
                _hidden(found, noise, truth, form),
                rounding=rounding,
                found=first,
                excused_by="" if first is found else scatter.source.name,
            )
    if any(scatter.draws for scatter in scatters):
        return held.judged(Closeness.UNKNOWN, 0.0, None, rounding=rounding)
    if first is None:
        return _coarse(held, scatters, rounding)
    sure = not guessed or first.worst > GUESSED
    gross = sure and beyond > FAR
    wrong = held.judged(Closeness.WRONG, first.worst, None, rounding=rounding, found=first, sure=sure)
    return replace(wrong, gross=gross)


def _hidden(found: Explained, noise: Noise, truth: Tensor, form: Format) -> float | None:
    """The smallest constant factor that would have shown, less one."""
    size = truth.square().mean().sqrt().item()
    if not size > 0:
        return None
    limits = SHORT if form.is_short else SINGLE
    by_size = limits.whole * noise.sigma.square().mean().sqrt().item() / size
    by_slope = limits.slope * found.factor_error if form.is_short else by_size
    return min(by_size, by_slope)


def _coarse(held: _Held, scatters: Sequence[Scatter], rounding: Rounding | None) -> Judgement:
    """Where the noise inside is not known: half of the dtype's digits, and what moved inputs do."""
    form, truth = held.value.form, held.truth
    runs = held.of(scatters[-1].moved(form.unit)) if scatters else []
    allowed = allowed_error(truth, held.absorbed, runs, form) if runs else truth * math.nan
    if not allowed.isfinite().all():
        return held.judged(Closeness.UNKNOWN, 0.0, None, rounding=rounding)
    error = (held.got - truth).abs()
    ratio = (error / allowed).max().item()
    if ratio <= 1:
        return held.judged(Closeness.COARSE, ratio, form.unit**0.5, rounding=rounding)
    far = error > torch.maximum(FAR * allowed, COARSE_LEAST * typical(truth))
    return held.judged(Closeness.WRONG, ratio, None, rounding=rounding, sure=bool(far.any()))


def _is_usable(noise: Noise, runs: Runs | None, scatter: Scatter) -> bool:
    """Whether the noise is a number, and operations were seen to err, if any could: else nothing is known."""
    if runs is None or not noise.usable:
        return False
    return scatter.source.plain or bool(noise.null[: len(runs[0])].any())
