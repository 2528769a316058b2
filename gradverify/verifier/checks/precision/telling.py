"""Judgements as findings: what is wrong, where, by how much, what could hide."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from gradverify.model import Entries, Entry, Finding, Severity
from gradverify.verifier.checks.precision.arithmetic import Arithmetic
from gradverify.verifier.checks.precision.judging import Judgement
from gradverify.verifier.checks.precision.regimes import Regime
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import WORST_ENTRIES, count_of, number, output_name
from gradverify.verifier.numerics.precision.explained import Explained

CLEAR_FACTOR = 12.0
"""Standard deviations from which a constant factor is named."""


MOST_OF_IT = 0.5
"""Share of the square error in one slice for it to be named."""

LEFT_OVER = 0.1
"""Share of the mean square error that one factor may leave for the error to be called proportional."""


@dataclass(frozen=True)
class Where:
    """The sample, the dtype and the regime that a judgement was made in."""

    sample: Sample
    arithmetic: Arithmetic
    regime: Regime
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
        return f"{name} {self.arithmetic.said}" + (f" ({self.regime.name})" if self.regime.name else "")


def wrong(where: Where, judgement: Judgement, severity: Severity) -> Finding:
    """GV601: more is lost than rounding explains."""
    found = judgement.found
    times = f"{number(judgement.worst)} times what rounding explains"
    if found is not None and math.isinf(judgement.worst):
        times = "and what rounding explains is not a number"
    said, hint = f"is wrong, {times}", HINT_WRONG
    if found is not None and _is_proportional(judgement, found):
        said = f"is {1 + found.factor:.5g} times the truth, {times}"
        hint = "The error is proportional: look for a constant factor in the path that this dtype takes."
    elif found is not None and found.where[0] >= 0 and _is_one_slice(judgement, *found.where):
        dimension, index = found.where
        said = f"is wrong, most of all at index {index} of dimension {dimension}, {times}"
    return _made(
        where, judgement, "GV601", f"{where.of(judgement)} {said}; {_worst(judgement)}", hint, severity
    )


HINT_WRONG = (
    "Look for sums kept in the short dtype, casts to a shorter one, large "
    "numbers that cancel: computing in float32 inside and rounding once at the end is the usual remedy."
)


def unstable(where: Where, judgement: Judgement, severity: Severity) -> Finding:
    """GV601: explained by its own operations, but not by those of the composite."""
    return _made(
        where,
        judgement,
        "GV601",
        f"{where.of(judgement)} loses {number(_first_worst(judgement))} times what {where.truth} may; "
        f"rounding in its own operations explains that; {_worst(judgement)}",
        "The formula is right and badly conditioned: look for large numbers that cancel.",
        severity,
    )


def unrepeated(where: Where, judgement: Judgement) -> Finding:
    """GV601, a note: more than rounding explains, once."""
    return _made(
        where,
        judgement,
        "GV601",
        f"{where.of(judgement)} was further off than rounding explains, and not again at other values; "
        f"{_worst(judgement)}",
        "A threshold or a tie that rounding has crossed is the usual reason.",
        Severity.NOTE,
    )


def rounded(where: Where, judgement: Judgement, *, declared: bool) -> Finding:
    """GV601: not correctly rounded; a note, or an error where `internals: float32` says it must be."""
    rounding = judgement.rounding
    share = f"{100 * rounding.share:.2g} %" if rounding is not None else "some"
    what = f"{where.of(judgement)} is not correctly rounded at {share} of its entries"
    if declared:
        return _made(
            where,
            judgement,
            "GV601",
            f"{what}, and the spec declares `internals: float32`: something inside is rounded",
            HINT_WRONG,
            Severity.ERROR,
        )
    hides = f"a constant error of {number(100 * judgement.hides)} % could hide" if judgement.hides else ""
    return _made(
        where,
        judgement,
        "GV601",
        f"{what}; rounding intermediates to {where.arithmetic.rounds_to} explains that"
        + (f", but {hides}" if hides else ""),
        "If the kernel keeps float32 inside, set `internals: float32` in the spec: then this is a failure.",
        Severity.NOTE,
    )


def outliers(where: Where, judgement: Judgement) -> Finding:
    """GV601: most entries are correctly rounded and a few are far off."""
    rounding = judgement.rounding
    share, worst = (rounding.share, rounding.worst) if rounding is not None else (0.0, 0.0)
    return _made(
        where,
        judgement,
        "GV601",
        f"{where.of(judgement)} is correctly rounded but for {100 * share:.2g} % of its entries, which are "
        f"up to {number(worst)} times as far off; {_worst(judgement)}",
        "Look at what is special about these entries: a boundary, a tail, a large value.",
        Severity.WARNING,
    )


def not_finite(where: Where, judgement: Judgement, severity: Severity, *, composite: str) -> Finding:
    """GV602: NaN or an infinity where the truth is a number of the dtype."""
    count, total = int(judgement.lost.sum()), judgement.lost.numel()
    largest = judgement.exact[judgement.lost].abs().max().item()
    lost = f"{where.of(judgement)} is not finite at {count_of(count, total)}"
    said = f"{lost}; the truth there is at most {number(largest)}"
    hint = "Subtract the maximum before exp, scale before squares are summed, or compute in float32 inside."
    return _made(where, judgement, "GV602", f"{said}; {composite}" if composite else said, hint, severity)


def refused(where: Where, reason: str) -> Finding:
    """GV109: a dtype that was asked for and could not be judged."""
    return where.sample.finding(
        "GV109",
        f"{where.arithmetic.name} was asked for and could not be judged: {reason}",
        hint=_leave_out(where.arithmetic),
    )


def _leave_out(arithmetic: Arithmetic) -> str:
    if arithmetic.autocast_on:
        return 'Write `ignore: {GV603: "why"}` in its spec where autocast is not meant.'
    return f"Leave {arithmetic.name} out of `dtypes`, or let forward and backward accept it."


def unknown(where: Where, judgement: Judgement) -> Finding:
    """GV109: a value in a dtype that was asked for, which nothing can be said of."""
    return where.sample.finding(
        "GV109",
        f"{where.of(judgement)} could not be judged: what rounding does to it cannot be measured",
        hint="Name a composite of plain torch operations as `reference:`.",
        output=judgement.value.output,
        input=judgement.value.input,
    )


def _is_proportional(judgement: Judgement, found: Explained) -> bool:
    """Whether one factor explains most of the error."""
    if not abs(found.factor) > CLEAR_FACTOR * found.factor_error:
        return False
    error = judgement.got - judgement.truth
    left = error - found.factor * judgement.truth
    return bool(left.square().mean() < LEFT_OVER * error.square().mean())


def _is_one_slice(judgement: Judgement, dimension: int, index: int) -> bool:
    """Whether most of the error lies in one slice."""
    squares = (judgement.got - judgement.truth).square()
    return bool(squares.select(dimension, index).sum() > MOST_OF_IT * squares.sum())


def _first_worst(judgement: Judgement) -> float:
    return judgement.found.worst if judgement.found is not None else judgement.worst


def _made(
    where: Where, judgement: Judgement, code: str, message: str, hint: str, severity: Severity
) -> Finding:
    return where.sample.finding(
        code,
        message,
        hint=hint,
        output=judgement.value.output,
        input=judgement.value.input,
        severity=severity,
        entries=_entries(judgement),
        badness=judgement.worst if math.isfinite(judgement.worst) else math.inf,
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
    error = torch.where(judgement.lost, torch.inf, (judgement.got - judgement.truth).abs())
    flat, exact = error.reshape(-1), judgement.exact.reshape(-1)
    order = flat.argsort(descending=True, stable=True)[:WORST_ENTRIES].tolist()
    form = judgement.value.form
    wrong_count = int((error > 2 * form.unit * judgement.truth.abs() + form.tiny).sum())
    worst = []
    for place in order:
        index = _index(place, tuple(error.shape))
        is_output = judgement.value.output is not None
        got = math.nan if judgement.lost.reshape(-1)[place] else judgement.got.reshape(-1)[place].item()
        worst.append(
            Entry(
                output=index if is_output else (),
                input=None if is_output else index,
                actual=got,
                expected=exact[place].item(),
                error_bound=form.unit * abs(exact[place].item()),
            )
        )
    return Entries(wrong_count, error.numel(), tuple(worst), compared_with="reference")


def _index(place: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        place, here = divmod(place, size)
        index.append(here)
    return tuple(reversed(index))
