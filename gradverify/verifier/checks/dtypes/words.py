"""What is said of a value in a native dtype: GV601, GV602, GV109, and what is no loss of digits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from gradverify.model import Entries, Entry, Finding, Severity
from gradverify.verifier.checks.dtypes.calls import Arithmetic
from gradverify.verifier.checks.dtypes.judging import Judgement, factor_of, sixteen_bits, worst_slice
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import WORST_ENTRIES, count_of, number, output_name, percent
from gradverify.verifier.numerics.problem import multi_index

LOSS = "GV601"

OF_AN_OUTPUT = "GV301"
OF_A_GRADIENT = ("GV101", "GV302")
"""Codes of what is no loss of digits: another value than the reference has, another gradient."""

SIXTEEN_BITS = "sixteen-bits-inside"
"""The cause where a value of more digits consists of numbers of a shorter dtype."""

HINT_SIXTEEN = (
    "Something inside is rounded to {}: a sum that is accumulated in it, whose error grows with its length, "
    "or a cast on the way. Keep float32 until the end."
)
NO_ROUNDING = "That is no rounding: look at the formula, an index, a mask, a sum that was not taken."
OTHER_VALUES = "Forward and reference give different values: the gradients are not compared."
HINT_FACTOR = "The error is proportional: look for a constant factor in the path that this dtype takes."
HINT_UNSTABLE = (
    "The formula loses its digits at these values, or a branch for them is wrong: subtract the maximum "
    "before exp and the mean before squaring, add logarithms instead of multiplying, or compute in more "
    "digits inside. If such values are not valid in this dtype, narrow `range`, or list other `dtypes`."
)
HINT_INTERNALS = (
    "If the kernel keeps float32 inside, set `internals: float32` in the spec: then this is a failure."
)
HINT_FINITE = (
    "Subtract the maximum before exp, scale before squares are summed, or compute in more digits inside."
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
    values: str
    """The name of a range of values; empty for those that were drawn."""
    truth: str
    """What the values were held against, in words."""

    def finding(
        self, judgement: Judgement, said: str, hint: str, severity: Severity, code: str = LOSS
    ) -> Finding:
        """A finding on one value; `said` follows its name."""
        return self.sample.finding(
            code,
            f"{self._name(judgement)} {said}",
            hint=hint,
            output=judgement.value.output,
            input=judgement.value.input,
            severity=severity,
            entries=_entries(judgement),
            badness=judgement.worst if math.isfinite(judgement.worst) else math.inf,
        )

    def _name(self, judgement: Judgement) -> str:
        """`the gradient with respect to `x` in bfloat16 (values up to 120)`."""
        value = judgement.value
        name = f"the gradient with respect to `{value.input}`"
        if value.output is not None:
            name = output_name(value.output, self.sample.outputs_returned)
        return f"{name} {self.arithmetic.said}" + (f" ({self.values})" if self.values else "")

    def wrong(self, judgement: Judgement, severity: Severity) -> Finding:
        """More is lost than rounding explains."""
        stable = " in any stable formula" if judgement.unstable else ""
        times = f"{number(judgement.worst)} times what rounding{stable} explains"
        times += f" beside {self.truth}" if judgement.unstable else ""
        if math.isinf(judgement.worst):
            times = "and what rounding explains is not a number"
        short, factor, place = sixteen_bits(judgement), factor_of(judgement), worst_slice(judgement)
        code = LOSS if short or judgement.unstable else self._code(judgement)
        hint = {LOSS: HINT_WRONG, OF_AN_OUTPUT: OTHER_VALUES}.get(code, NO_ROUNDING)
        hint = HINT_UNSTABLE if judgement.unstable else hint
        if short:
            said, hint = f"has only the digits of {short}, {times}", HINT_SIXTEEN.format(short)
        elif factor is not None:
            said, hint = f"is {factor:.5g} times the truth, {times}", HINT_FACTOR
        elif place is not None:
            said = f"is wrong, most of all at index {place[1]} of dimension {place[0]}, {times}"
        else:
            said = f"is wrong, {times}"
        made = self.finding(judgement, f"{said}; {_worst(judgement)}", hint, severity, code)
        if short:
            return replace(made, cause=SIXTEEN_BITS)
        if factor is not None:
            return replace(made, cause="constant-factor", factor=float(f"{factor:.5g}"))
        return made

    def _code(self, judgement: Judgement) -> str:
        """Where there is no float64 path, what is off by more than half of the digits is no rounding."""
        truth, form, subject = judgement.truth, judgement.form, self.sample.subject
        error, size = (judgement.got - truth).abs(), truth.abs() + truth.square().mean().sqrt()
        gross = bool((error > form.unit**0.5 * size + form.tiny).any())
        if not (gross and self.sample.is_native and self.arithmetic.name == subject.native):
            return LOSS
        if judgement.value.output is not None:
            return OF_AN_OUTPUT if subject.reference is not None else LOSS
        return "GV302" if subject.reference is not None else "GV101"

    def not_stable(self, judgement: Judgement, *, open_target: bool) -> Finding:
        """More than a stable formula may lose, and not so that it is wrong without doubt.

        GV109 where the target is then not verified, else a note.
        """
        said = (
            f"is unstable: it is {number(judgement.worst)} times as far off as half of the dtype's digits "
            f"and rounded inputs explain, so that nothing more is known of it; {_worst(judgement)}"
        )
        code, severity = ("GV109", Severity.WARNING) if open_target else (LOSS, Severity.NOTE)
        return self.finding(judgement, said, HINT_UNSTABLE, severity, code)

    def rounded(self, judgement: Judgement, *, declared: bool) -> Finding:
        """Not correctly rounded; a note, or an error where `internals: float32` says it must be."""
        share = percent(judgement.rounding.share) if judgement.rounding is not None else "some"
        said = f"is not correctly rounded at {share} of its entries"
        if declared:
            said += ", and the spec declares `internals: float32`: something inside is rounded"
            return self.finding(judgement, said, HINT_WRONG, Severity.ERROR)
        said += f"; rounding intermediates to {self.arithmetic.rounds_to} explains that"
        if judgement.hides:
            said += f", but a constant error of {number(100 * judgement.hides)} % could hide"
        return self.finding(judgement, said, HINT_INTERNALS, Severity.NOTE)

    def outliers(self, judgement: Judgement) -> Finding:
        """Most entries are correctly rounded and a few are far off."""
        rounding = judgement.rounding
        share, worst = (rounding.share, rounding.worst) if rounding is not None else (0.0, 0.0)
        said = (
            f"is correctly rounded but for {percent(share)} of its entries, which are up to {number(worst)} "
            f"times as far off; {_worst(judgement)}"
        )
        hint = "Look at what is special about these entries: a boundary, a tail, a large value."
        return self.finding(judgement, said, hint, Severity.WARNING)

    def not_finite(self, judgement: Judgement, severity: Severity, *, composite: str) -> Finding:
        """GV602: NaN or an infinity where the truth is a number of the dtype."""
        largest = number(judgement.exact[judgement.lost].abs().max().item())
        places = count_of(int(judgement.lost.sum()), judgement.lost.numel())
        said = f"is not finite at {places}; the truth there is at most {largest}"
        said += f"; {composite}" if composite else ""
        return self.finding(judgement, said, HINT_FINITE, severity, "GV602")

    def refused(self, reason: str) -> Finding:
        """GV109: a dtype that was asked for and could not be judged."""
        name = self.arithmetic.name
        hint = f"Leave {name} out of `dtypes`, or let forward and backward accept it."
        if self.arithmetic.autocast_on:
            hint = 'Write `ignore: {GV603: "why"}` in its spec where autocast is not meant.'
        said = f"{name} was requested and could not be judged: {reason}"
        return self.sample.finding("GV109", said, hint=hint)

    def unknown(self, judgement: Judgement) -> Finding:
        """GV109: a value in a dtype that was asked for, which nothing can be said of."""
        return self.sample.finding(
            "GV109",
            f"{self._name(judgement)} could not be judged: what rounding does to it cannot be measured",
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
    form, exact = judgement.form, judgement.exact.reshape(-1)
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
