"""From a value in a native dtype, its truth and the noise to a judgement, and to a finding's words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gradverify.model import Closeness, Entries, Entry, Finding, Severity
from gradverify.verifier.checks.precision.native import (
    Arithmetic,
    NativeCall,
    Runs,
    Scatter,
    Value,
    absorbed_by_ones,
    allowed_error,
    largest_input,
    typical,
)
from gradverify.verifier.checks.precision.value_ranges import ValueRange
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import WORST_ENTRIES, count_of, number, output_name, percent
from gradverify.verifier.numerics.native_rounding import (
    SHORT,
    SINGLE,
    SINGLE_UNIT,
    Explained,
    Format,
    Noise,
    Rounding,
    correct_rounding,
    explained,
    inside_noise,
    least_noise,
    rounding_noise,
)
from gradverify.verifier.numerics.problem import multi_index

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
    for place, (value, got, wanted) in enumerate(zip(call.values, call.got, truth.values, strict=True)):
        if wanted.shape != got.shape or not wanted.numel():
            continue
        known = wanted.abs() <= value.form.largest  # False for a truth that is not finite itself
        within = known & got.isfinite()
        both = (torch.where(within, got, 0.0), torch.where(within, wanted, 0.0))
        judged = judge(_Held(value, place, *both, within, absorbed[place]), truth.scatters)
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


LOSS = "GV601"

OWN_FLOAT32 = "its own float32"
"""What 16 bits are held against where there is no composite: the same formula."""

SIXTEEN_BITS = "sixteen-bits-inside"
"""The cause where a value of more digits consists of numbers of a shorter dtype."""

HINT_SIXTEEN = (
    "Something inside is rounded to {}: a sum that is accumulated in it, whose error grows with its length, "
    "or a cast on the way. Keep float32 until the end."
)

FEWEST_TELLING = 3
"""Entries that must be numbers of 16 bits though the truth is not: by chance one is, once in 2^13.

As many must be off by the same factor, which one entry always is."""

CLEAR_FACTOR = 12.0
"""Standard deviations from which a constant factor is named."""

MOST_OF_IT = 0.5
"""Share of the square error in one slice for it to be named."""

LEFT_OVER = 1e-3
"""Share of the mean square error that one factor may leave, beside rounding, if the error is proportional."""

OF_AN_OUTPUT = "GV301"
OF_A_GRADIENT = ("GV101", "GV302")
"""Codes of what is no loss of digits: another value than the reference has, another gradient."""

NO_ROUNDING = "That is no rounding: look at the formula, an index, a mask, a sum that was not taken."
OTHER_VALUES = "Forward and reference give different values: the gradients are not compared."

HINT_UNSTABLE = (
    "The formula loses its digits at these values, or a branch for them is wrong: subtract the maximum "
    "before exp and the mean before squaring, add logarithms instead of multiplying, or compute in more "
    "digits inside. If such values are not valid in this dtype, narrow `range`, or list other `dtypes`."
)

HINT_WRONG = (
    "Look for sums kept in the short dtype, casts to a shorter one, large "
    "numbers that cancel: computing in float32 inside and rounding once at the end is the usual remedy."
)


@dataclass(frozen=True)
class Where:
    """The sample, the dtype and the range of values that a judgement was made in."""

    sample: Sample
    arithmetic: Arithmetic
    values: ValueRange
    truth: str
    """What the values were held against, in words."""

    def of(self, judgement: Judgement) -> str:
        """`the gradient with respect to `x` in bfloat16 (values up to 120)`."""
        value = judgement.value
        name = (
            f"the gradient with respect to `{value.input}`"
            if value.input is not None
            else output_name(value.output or 0, self.sample.outputs_returned)
        )
        return f"{name} {self.arithmetic.said}" + (f" ({self.values.name})" if self.values.name else "")

    def finding(
        self, judgement: Judgement, said: str, hint: str, severity: Severity, code: str = LOSS
    ) -> Finding:
        """A finding on one value; `said` follows its name."""
        return self.sample.finding(
            code,
            f"{self.of(judgement)} {said}",
            hint=hint,
            output=judgement.value.output,
            input=judgement.value.input,
            severity=severity,
            entries=_entries(judgement),
            badness=judgement.worst if math.isfinite(judgement.worst) else math.inf,
        )


def wrong(where: Where, judgement: Judgement, severity: Severity) -> Finding:
    """More is lost than rounding explains."""
    found = judgement.found
    explains = "rounding in any stable formula" if judgement.unstable else "rounding"
    times = f"{number(judgement.worst)} times what {explains} explains"
    times += f" beside {where.truth}" if judgement.unstable else ""
    if found is not None and math.isinf(judgement.worst):
        times = "and what rounding explains is not a number"
    short, error = _sixteen_bits(judgement), judgement.got - judgement.truth
    code = LOSS if short or judgement.unstable else _code(where, judgement)
    hint = (
        HINT_UNSTABLE
        if judgement.unstable
        else {LOSS: HINT_WRONG, OF_AN_OUTPUT: OTHER_VALUES}.get(code, NO_ROUNDING)
    )
    if short:
        said, hint = f"has only the digits of {short}, {times}", HINT_SIXTEEN.format(short)
    elif _is_proportional(judgement) and found is not None:
        said = f"is {1 + found.factor:.5g} times the truth, {times}"
        hint = "The error is proportional: look for a constant factor in the path that this dtype takes."
    elif found is not None and found.where[0] >= 0 and _is_in_one_slice(error, *found.where):
        dimension, index = found.where
        said = f"is wrong, most of all at index {index} of dimension {dimension}, {times}"
    else:
        said = f"is wrong, {times}"
    made = where.finding(judgement, f"{said}; {_worst(judgement)}", hint, severity, code)
    if short:
        return replace(made, cause=SIXTEEN_BITS)
    if _is_proportional(judgement) and found is not None:
        return replace(made, cause="constant-factor", factor=float(f"{1 + found.factor:.5g}"))
    return made


def _sixteen_bits(judgement: Judgement) -> str:
    """The dtype of 16 bits whose numbers a longer value consists of where the truth does not; else empty."""
    got, truth = judgement.got, judgement.truth
    for name in () if judgement.value.form.is_short else ("bfloat16", "float16"):
        dtype: torch.dtype = getattr(torch, name)
        telling = (truth.to(dtype).double() != truth) & (got != 0)
        if int(telling.sum()) >= FEWEST_TELLING and (got.to(dtype).double() == got)[telling].all():
            return name
    return ""


def _is_proportional(judgement: Judgement) -> bool:
    """Whether one factor explains the error at every entry."""
    found, error = judgement.found, judgement.got - judgement.truth
    if found is None or abs(found.factor) <= CLEAR_FACTOR * found.factor_error:
        return False
    if int((judgement.truth != 0).sum()) < FEWEST_TELLING:  # a factor explains any error at one entry
        return False
    left = (error - found.factor * judgement.truth).square().mean()
    rounded = (2 * judgement.value.form.unit * judgement.truth).square().mean()
    return bool(left < LEFT_OVER * error.square().mean() + rounded)


def _is_in_one_slice(error: Tensor, dimension: int, index: int) -> bool:
    return bool(error.square().select(dimension, index).sum() > MOST_OF_IT * error.square().sum())


def _code(where: Where, judgement: Judgement) -> str:
    """What is off by more than half of the dtype's digits, where there is no float64 path, is no rounding."""
    truth = judgement.truth
    error, size = (judgement.got - truth).abs(), truth.abs() + truth.square().mean().sqrt()
    gross = bool((error > judgement.value.form.unit**0.5 * size + judgement.value.form.tiny).any())
    of_the_formula = where.sample.is_native and where.truth != OWN_FLOAT32
    if not (gross and of_the_formula and where.arithmetic.name == where.sample.subject.native):
        return LOSS
    has_reference = where.sample.subject.reference is not None
    if judgement.value.output is not None:
        return OF_AN_OUTPUT if has_reference else LOSS
    return "GV302" if has_reference else "GV101"


def unstable(where: Where, judgement: Judgement, severity: Severity) -> Finding:
    """Explained by its own operations, but not by those of the composite."""
    worst = judgement.found.worst if judgement.found is not None else judgement.worst
    said = f"loses {number(worst)} times what {where.truth} may; rounding in its own operations explains that"
    hint = "The formula is right and badly conditioned: look for large numbers that cancel."
    return where.finding(judgement, f"{said}; {_worst(judgement)}", hint, severity)


def not_stable(where: Where, judgement: Judgement, *, open_target: bool) -> Finding:
    """More than a stable formula may lose, and not so that it is wrong without doubt.

    GV109 where the target is then not verified, else a note.
    """
    said = (
        f"is unstable: it is {number(judgement.worst)} times as far off as half of the dtype's digits and "
        f"rounded inputs explain, so that nothing more is known of it; {_worst(judgement)}"
    )
    if open_target:
        return where.finding(judgement, said, HINT_UNSTABLE, Severity.WARNING, "GV109")
    return where.finding(judgement, said, HINT_UNSTABLE, Severity.NOTE)


def unrepeated(where: Where, judgement: Judgement) -> Finding:
    """More than rounding explains, once."""
    said = "was further off than rounding explains, but not at other values"
    hint = "A threshold or a tie that rounding has crossed is the usual reason."
    return where.finding(judgement, f"{said}; {_worst(judgement)}", hint, Severity.NOTE)


def rounded(where: Where, judgement: Judgement, *, declared: bool) -> Finding:
    """Not correctly rounded; a note, or an error where `internals: float32` says it must be."""
    rounding = judgement.rounding
    share = percent(rounding.share) if rounding is not None else "some"
    said = f"is not correctly rounded at {share} of its entries"
    if declared:
        said += ", and the spec declares `internals: float32`: something inside is rounded"
        return where.finding(judgement, said, HINT_WRONG, Severity.ERROR)
    said += f"; rounding intermediates to {where.arithmetic.rounds_to} explains that"
    if judgement.hides:
        said += f", but a constant error of {number(100 * judgement.hides)} % could hide"
    hint = "If the kernel keeps float32 inside, set `internals: float32` in the spec: then this is a failure."
    return where.finding(judgement, said, hint, Severity.NOTE)


def outliers(where: Where, judgement: Judgement) -> Finding:
    """Most entries are correctly rounded and a few are far off."""
    rounding = judgement.rounding
    share, worst = (rounding.share, rounding.worst) if rounding is not None else (0.0, 0.0)
    said = (
        f"is correctly rounded but for {percent(share)} of its entries, which are up to {number(worst)} "
        f"times as far off; {_worst(judgement)}"
    )
    hint = "Look at what is special about these entries: a boundary, a tail, a large value."
    return where.finding(judgement, said, hint, Severity.WARNING)


def not_finite(where: Where, judgement: Judgement, severity: Severity, *, composite: str) -> Finding:
    """GV602: NaN or an infinity where the truth is a number of the dtype."""
    largest = number(judgement.exact[judgement.lost].abs().max().item())
    places = count_of(int(judgement.lost.sum()), judgement.lost.numel())
    said = f"is not finite at {places}; the truth there is at most {largest}"
    said += f"; {composite}" if composite else ""
    hint = (
        "Subtract the maximum before exp, scale before squares are summed, or compute in more digits inside."
    )
    return where.finding(judgement, said, hint, severity, "GV602")


def refused(where: Where, reason: str) -> Finding:
    """GV109: a dtype that was asked for and could not be judged."""
    name = where.arithmetic.name
    hint = f"Leave {name} out of `dtypes`, or let forward and backward accept it."
    if where.arithmetic.autocast_on:
        hint = 'Write `ignore: {GV603: "why"}` in its spec where autocast is not meant.'
    said = f"{name} was requested and could not be judged: {reason}"
    return where.sample.finding("GV109", said, hint=hint)


def unknown(where: Where, judgement: Judgement) -> Finding:
    """GV109: a value in a dtype that was asked for, which nothing can be said of."""
    return where.sample.finding(
        "GV109",
        f"{where.of(judgement)} could not be judged: what rounding does to it cannot be measured",
        hint="Name a composite of plain torch operations as `reference:`.",
        output=judgement.value.output,
        input=judgement.value.input,
    )


def _worst(judgement: Judgement) -> str:
    """`at worst 1.054 instead of 1.004 at [16,3]`."""
    error = (judgement.got - judgement.truth).abs()
    place = int(error.argmax())
    index = multi_index(place, error.shape)
    at = f" at [{','.join(map(str, index))}]" if index else ""
    values = [t.reshape(-1)[place].item() for t in (judgement.got, judgement.truth)]
    got, truth = map(number, values)
    if got == truth:
        got, truth = (f"{value:.9g}" for value in values)
    return f"at worst {got} instead of {truth}{at}"


def _entries(judgement: Judgement) -> Entries:
    """The entries furthest from the truth; all of them count as checked."""
    form, exact = judgement.value.form, judgement.exact.reshape(-1)
    error = torch.where(judgement.lost, torch.inf, (judgement.got - judgement.truth).abs())
    got = torch.where(judgement.lost, torch.nan, judgement.got).reshape(-1)
    order = error.reshape(-1).argsort(descending=True, stable=True)[:WORST_ENTRIES].tolist()
    worst = []
    for place in order:
        index = multi_index(place, error.shape)
        output, source = (index, None) if judgement.value.output is not None else ((), index)
        bound = form.unit * abs(exact[place].item())
        worst.append(Entry(output, source, got[place].item(), exact[place].item(), bound))
    wrong_count = int((error > 2 * form.unit * judgement.truth.abs() + form.tiny).sum())
    return Entries(wrong_count, error.numel(), tuple(worst), compared_with="reference")
