"""The verdict at guessed or undeclared values: a mismatch fails only if the guess cannot explain it.

All of inferred inputs is a guess; of a spec, the values that it does not declare. Each way to explain a
finding gives it as an inconclusive one that says what was guessed. A gradient that is right is asked too
whether it says anything: a loop of no rounds has a backward of any kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain

from torch import Tensor

from gradverify.model import Finding, Outcome, Point, Severity
from gradverify.model.case import is_declared
from gradverify.verifier.guard.raised_errors import is_bound_nowhere
from gradverify.verifier.neighbours.asking import (
    OF_A_SLOPE,
    OF_SECOND_ORDER,
    Neighbour,
    Row,
    gradients_at,
    is_right,
)
from gradverify.verifier.neighbours.meant import (
    OF_THE_COUNT,
    guesses_behind,
    is_constant_there,
    is_meant,
    is_still,
    no_derivative_meant,
    raises_on_purpose,
    worst_entries,
)
from gradverify.verifier.neighbours.shapes import OF_SHAPES, of_another_shape
from gradverify.verifier.neighbours.values import (
    LEAST_ASKED,
    OF_GRAD_OUTPUT,
    OF_STRUCTURES,
    OF_THE_DERIVATIVE,
    at_other_values,
    constants_of_a_kind,
    declares_values,
    doubts_of,
    inside_a_domain,
    made_up,
    of_any_structure,
    told_at,
    where_all_is_positive,
    where_backward_converges,
    where_forward_converges,
    without_signs,
    zeros_of_padding,
)
from gradverify.verifier.questions.findings import (
    NOT_REPEATED,
    CheckResult,
    declare,
    if_guessed,
    invented,
    outcome_of,
    undeclared,
)
from gradverify.verifier.questions.subject import Sample, prepare

Reason = Callable[[Sample, Finding], Finding | None]
"""Gives an error as an inconclusive finding that says what was guessed; None where that did not make it."""

CERTAIN = ("GV105", "GV4", "GV502", "GV503")
"""Codes that do not hang on the values of the inputs: no guess can have made them."""

OF_THE_MATRIX = "GV410"
"""Certain no more where something was made up: LAPACK gives anything for singular ones."""

SLIGHT = 1e-3
"""Share of a derivative, the tolerance of torch's gradcheck: where backward is right at moderate values,
one that protects a division by zero is off by so much at tiny ones, and only a spec says that they count."""

REDRAWN = (101, 202, 303)
"""Offsets from a case's seed to those of other masks, labels and dropped entries: one draw may hide all."""

NO_EFFECT = "no output depends on `{}` here, so that its gradient was not seen"
"""What is said of a gradient that is zero, rightly, where something was made up."""

HIDDEN = "the gradient is right here, and wrong at most other values of what was guessed"
"""What is said where the numbers that were made up hide what is wrong: a loop of one round."""

CONSTANT = "forward is constant wherever it is wrong, as outside of a domain"


WHERE_FORWARD_CONVERGES = Row(OF_A_SLOPE, where_forward_converges)

INSIDE_A_DOMAIN = Row(OF_A_SLOPE | {"GV108"}, inside_a_domain)


def _inside(sample: Sample, finding: Finding) -> Finding | None:
    said = any(doubt.intent for doubt in sample.subject.doubts)
    return INSIDE_A_DOMAIN(sample, finding) if is_constant_there(finding) and not said else None


AT_GUESSES: tuple[Reason, ...] = (
    Row(frozenset({OF_GRAD_OUTPUT}), where_backward_converges),
    _inside,
    no_derivative_meant,
    is_meant,
    made_up,
    WHERE_FORWARD_CONVERGES,
    Row(OF_SHAPES, of_another_shape),
    Row(OF_A_SLOPE | {"GV102"}, without_signs),
    Row(OF_A_SLOPE | {"GV108"}, where_all_is_positive),
    raises_on_purpose,
    Row(OF_STRUCTURES, of_any_structure),
    Row(OF_THE_DERIVATIVE, constants_of_a_kind),
    Row(OF_A_SLOPE, zeros_of_padding),
)
"""Ways to explain a finding on inferred inputs, in the order in which they are asked: what costs no call, and
what is guessed most often, first."""


def _extreme(sample: Sample, finding: Finding) -> Finding | None:
    """What was made up that is in doubt at such values alone."""
    return if_guessed(finding, [d.what for d in sample.subject.doubts if d.extreme])


def _such_values(sample: Sample, finding: Finding) -> Finding | None:
    """Every entry is NaN, or off by little: by an epsilon in a denominator, a tail that is cut off."""
    worst = worst_entries(finding)
    slight = bool(worst) and all(abs(e.actual - e.expected) <= SLIGHT * abs(e.expected) for e in worst)
    is_doubtful = slight or (finding.code == "GV108" and sample.point is Point.SPECIAL)
    return if_guessed(finding, ["that such values are valid"] if is_doubtful else [])


def _constant_there(sample: Sample, finding: Finding) -> Finding | None:
    """Forward does not move wherever it is wrong, at values that nobody declared."""
    if finding.code not in OF_A_SLOPE or not is_still(sample, finding):
        return None
    name = str(finding.input)
    declared = f"`avoid: [0]` of `{name}`" if sample.point is Point.SPECIAL else f"a `range:` of `{name}`"
    if name.startswith("self."):  # a parameter of a module is an input of its Function
        declared = f"in an entry for the Function that gets `{name}`, with a `range:` of it"
    if not sample.subject.inferred:
        return undeclared(finding, CONSTANT, declared)
    what = f"that `{name}` has such values (forward is constant wherever backward is wrong)"
    return invented(finding, [what], declare(declared))


def _unless_declared(sample: Sample, finding: Finding) -> Finding | None:
    """A spec without a range for any input does not say that an iteration converges."""
    is_open = sample.point is Point.TYPICAL and not declares_values(sample)
    return WHERE_FORWARD_CONVERGES(sample, finding) if is_open else None


AT_UNDECLARED: tuple[Reason, ...] = (no_derivative_meant, made_up, _extreme, _such_values, _constant_there)
"""Of inferred inputs, where backward is right at moderate values."""

Mistake = tuple[object, ...]
"""Options and what is in doubt with them, code, input and output."""


@dataclass
class Excuses:
    """What excused a mistake at some values excuses it at the others, and is not asked again.

    A guess of sizes or shapes is the same at all of them, and what none explained remains.
    """

    by_mistake: dict[Mistake, tuple[str, Finding] | None] = field(default_factory=dict)
    """Its message, and what it became; None for what nothing excused."""

    def of(self, sample: Sample, finding: Finding, reasons: tuple[Reason, ...]) -> Finding:
        """The finding, as the first reason excuses it, or the gradient on which a second derivative rests."""
        options = sample.case.options, frozenset(d.what for d in doubts_of(sample))
        key: Mistake = options, finding.code, finding.input, finding.output
        if key not in self.by_mistake and finding.code.startswith(OF_SECOND_ORDER):
            first = (k for k, e in self.by_mistake.items() if k[0] == options and k[1] in OF_A_SLOPE and e)
            key = next(first, key)
        if key not in self.by_mistake:
            reader = sample.subject.reader
            # What backward returns at inputs that are tried here is no news of the sample's own.
            with nullcontext() if reader is None else reader.without_new_remarks():
                found = next(filter(None, (reason(sample, finding) for reason in reasons)), None)
            self.by_mistake[key] = None if found is None else (finding.message, found)
        kept = self.by_mistake[key]
        if kept is None:
            return finding
        said, excused = kept
        return replace(
            excused,
            message=excused.message.replace(said, finding.message),
            suspected=finding.code,
            case=finding.case,
            input=finding.input,
            output=finding.output,
            entries=finding.entries,
        )


def guarded(sample: Sample, result: CheckResult, excuses: Excuses) -> CheckResult:
    """Turn errors that a guess may have made into inconclusive findings, each by the first reason there is.

    `excuses` are those of the target.
    """
    listed = is_declared(sample.point, sample.draw)
    if sample.subject.inferred:
        reasons = AT_GUESSES if listed else AT_UNDECLARED
    else:
        reasons = (_unless_declared,) if listed else (_constant_there,)
    findings = tuple(
        f if f.severity is not Severity.ERROR or _is_certain(sample, f) else excuses.of(sample, f, reasons)
        for f in result.findings
    )
    excused = result.outcome is Outcome.FAILED and outcome_of(findings) is Outcome.PASSED
    return replace(result, findings=findings, outcome=Outcome.INCONCLUSIVE if excused else result.outcome)


def unless_unseen(sample: Sample, result: CheckResult) -> CheckResult:
    """A first order that is right, as inconclusive where what was made up keeps it from saying anything."""
    is_first = sample.is_first_draw and sample.subject.is_first_of_options and sample.subject.inferred
    unseen = _unseen(sample) if is_first and result.outcome is Outcome.PASSED else None
    if unseen is None:
        return result
    return replace(result, findings=(*result.findings, unseen), outcome=Outcome.INCONCLUSIVE)


def _unseen(sample: Sample) -> Finding | None:
    """Zeros, or what is wrong at most other values of what was made up."""
    doubts = doubts_of(sample)
    what = tuple(d.what for d in doubts) or tuple(_constants_of(sample))
    names = [d.name for d in doubts if d.of_values]
    several = [*at_other_values(sample, names, rounds=True)] if names else []
    told, zero = told_at(several, ""), _of_no_effect(sample)
    if len(told) >= LEAST_ASKED and 2 * sum(told) < len(told):
        return invented(sample.finding("GV109", HIDDEN), what)
    is_open = what and (names or zero == {*sample.problem.input_names})
    for name in sorted(zero) if is_open else ():
        others = chain(several, _redrawn(sample))
        if not any(name not in _of_no_effect(one) and is_right(Neighbour(one), name) for one in others):
            return invented(sample.finding("GV109", NO_EFFECT.format(name), input=name), what)
    return None


def _of_no_effect(sample: Sample) -> set[str]:
    """Inputs to which a random grad_output gives zeros; none where backward raises."""
    return {name for name, gradient in gradients_at(sample).items() if gradient is None or not gradient.any()}


def _redrawn(sample: Sample) -> Iterator[Sample]:
    """Other draws, and other sizes."""
    redrawn = (replace(sample.case, seed=sample.case.seed + offset) for offset in REDRAWN)
    for case in (*redrawn, *sample.subject.spares):
        for point in (sample.point, Point.SPECIAL):
            other = prepare(sample.subject, case, point, sample.draw)
            if isinstance(other, Sample):
                yield other


def _constants_of(sample: Sample) -> Iterator[str]:
    """Floating tensors that backward gives no gradient: an output may depend on these alone."""
    for argument in sample.arguments:
        value = argument.value
        if isinstance(value, Tensor) and value.is_floating_point() and not argument.differentiable:
            yield f"that `{argument.name}` is a constant (backward returns None for it)"


def _is_certain(sample: Sample, finding: Finding) -> bool:
    """Whether no guess can have made it: what raises may do so because of what was made up.

    Where two sizes were guessed to differ nothing is certain: what backward does not write of the longer
    one holds anything. Another case has them equal, and shows what hangs on neither.
    """
    if finding.raised is not None and is_bound_nowhere(finding.raised):
        return True
    if finding.cause == NOT_REPEATED or not finding.code.startswith(CERTAIN):
        return False
    hangs, counts = finding.raised is not None or finding.code == OF_THE_MATRIX, finding.code == OF_THE_COUNT
    return not any(guesses_behind(sample, finding)) and not any(
        hangs or d.differ or (counts and (d.of_count or d.name == finding.input)) for d in doubts_of(sample)
    )
