"""Judgements as findings: what is wrong, where, by how much, what could hide."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradverify.model import Entries, Entry, Finding, Severity
from gradverify.verifier.checks.precision.arithmetic import Arithmetic
from gradverify.verifier.checks.precision.judging import Judgement
from gradverify.verifier.checks.precision.value_ranges import ValueRange
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import WORST_ENTRIES, count_of, number, output_name

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
"""Entries that must be numbers of 16 bits though the truth is not: by chance one is, once in 2^13."""

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
OTHER_VALUES = "Forward and reference compute different things: the gradients are not compared."

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
        """`the gradient with respect to `x` in bfloat16 (values times 60)`."""
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
    share = f"{100 * rounding.share:.2g} %" if rounding is not None else "some"
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
        f"is correctly rounded but for {100 * share:.2g} % of its entries, which are up to {number(worst)} "
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
    hint = "Subtract the maximum before exp, scale before squares are summed, or compute in float32 inside."
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
    index = _index(place, tuple(error.shape))
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
        index = _index(place, tuple(error.shape))
        output, source = (index, None) if judgement.value.output is not None else ((), index)
        bound = form.unit * abs(exact[place].item())
        worst.append(Entry(output, source, got[place].item(), exact[place].item(), bound))
    wrong_count = int((error > 2 * form.unit * judgement.truth.abs() + form.tiny).sum())
    return Entries(wrong_count, error.numel(), tuple(worst), compared_with="reference")


def _index(place: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(place), shape))
