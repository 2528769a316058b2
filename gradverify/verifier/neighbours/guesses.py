"""The verdict at guessed or undeclared values: a mismatch fails only if the guess cannot explain it.

All of inferred inputs is a guess; of a spec, the values that it does not declare. Each way to explain a
finding gives it as an inconclusive one that says what was guessed. A gradient that is right is asked too
whether it says anything: a loop of no rounds has a backward of any kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice

from torch import Tensor

from gradverify.model import Doubt, Finding, Outcome, Point, Severity, TensorInput
from gradverify.rules import Family
from gradverify.verifier.neighbours.asking import (
    OF_A_SLOPE,
    OF_SECOND_ORDER,
    Near,
    Neighbour,
    Row,
    gradients_at,
    inputs_of,
    is_right,
)
from gradverify.verifier.neighbours.meant import (
    OF_THE_COUNT,
    guesses_behind,
    hangs_on_no_guess,
    is_meant,
    is_still,
    no_derivative_meant,
    raises_on_purpose,
)
from gradverify.verifier.neighbours.shapes import (
    OF_A_SHAPE,
    OF_SHAPES,
    as_returned,
    equal_sizes,
    even_sizes,
    last_size_as_read,
    one_fewer,
    one_more_at_the_end,
    one_more_in_front,
    single_matrices,
)
from gradverify.verifier.neighbours.structures import (
    OF_STRUCTURES,
    constants_of_a_kind,
    inside_a_domain,
    is_constant_there,
    of_any_structure,
    where_backward_converges,
    where_forward_converges,
    without_signs,
    zeros_of_padding,
)
from gradverify.verifier.neighbours.values import (
    LEAST_ASKED,
    MOST_ASKED,
    OF_GRAD_OUTPUT,
    OF_THE_DERIVATIVE,
    at_other_values,
    declared_by,
    declares_values,
    doubts_in,
    doubts_of,
    is_there_whatever,
    made_up,
)
from gradverify.verifier.questions.result import NOT_REPEATED, CheckResult
from gradverify.verifier.questions.samples import prepare
from gradverify.verifier.questions.subject import Sample
from gradverify.verifier.questions.wording import declare, if_guessed, invented, undeclared

Reason = Callable[[Near, Finding], Finding | None]
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

NOTHING = "no output depends on any input, so that no gradient was seen"
"""What is said of a gradient that is zero, rightly, where something was made up."""

NO_EFFECT = "no output depends on `{}` here, so that its gradient was not seen"
"""The same of one input."""

HIDDEN = "the gradient is right here, and wrong at most other values of what was guessed"
"""What is said where the numbers that were made up hide what is wrong: a loop of one round."""

CONSTANT = "forward is constant wherever it is wrong, as outside of a domain"


WHERE_FORWARD_CONVERGES = Row(OF_A_SLOPE, where_forward_converges)

INSIDE_A_DOMAIN = Row(OF_A_SLOPE | {"GV108"}, inside_a_domain)


def _inside(near: Near, finding: Finding) -> Finding | None:
    return INSIDE_A_DOMAIN(near, finding) if is_constant_there(finding) else None


AT_GUESSES: tuple[Reason, ...] = (
    Row(frozenset({OF_GRAD_OUTPUT}), where_backward_converges, 5),
    no_derivative_meant,
    is_meant,
    _inside,
    made_up,
    Row(OF_SHAPES, as_returned),
    WHERE_FORWARD_CONVERGES,
    Row(OF_SHAPES, even_sizes),
    Row(OF_SHAPES, one_more_in_front),
    Row(OF_SHAPES, one_more_at_the_end, 8),
    Row(OF_SHAPES, one_fewer, 12),
    Row(OF_SHAPES, single_matrices),
    Row(OF_A_SLOPE | {OF_A_SHAPE}, last_size_as_read),
    Row(OF_SHAPES, equal_sizes),
    Row(OF_A_SLOPE | {"GV102"}, without_signs),
    raises_on_purpose,
    Row(OF_STRUCTURES, of_any_structure, 16),
    Row(OF_THE_DERIVATIVE, constants_of_a_kind, 18),
    Row(OF_A_SLOPE, zeros_of_padding),
)
"""Ways to explain a finding on inferred inputs, in the order in which they are asked: what costs no call, and
what is guessed most often, first."""


def _anything_made_up(near: Near, finding: Finding) -> Finding | None:
    """Options and factors are swept; other values are drawn again."""
    doubts = doubts_in(near)
    what = [d.what for d in doubts if d.certain or d.differ]
    redrawn = [d for d in doubts if d.of_values and not d.certain]
    if redrawn and not is_there_whatever(near, finding, redrawn):
        what += [d.what for d in redrawn]
    return if_guessed(finding, [*what, *(d.what for d in near.sample.subject.doubts if d.extreme)])


def _such_values(near: Near, finding: Finding) -> Finding | None:
    """Every entry is NaN, or off by little: by an epsilon in a denominator, a tail that is cut off."""
    sample, name = near.sample, finding.input
    worst = finding.entries.worst if finding.entries is not None else ()
    slight = bool(worst) and all(abs(e.actual - e.expected) <= SLIGHT * abs(e.expected) for e in worst)
    special = sample.point is Point.SPECIAL
    if not slight and not (finding.code == "GV108" and special):
        return None
    primal = inputs_of(sample).get(name or "")
    zeros = special and primal is not None and bool((primal == 0).any())
    which = f"zeros of `{name}`" if zeros else "such values"
    return if_guessed(finding, [f"that {which} are valid"])


def _constant_there(near: Near, finding: Finding) -> Finding | None:
    """Forward does not move wherever it is wrong, at values that nobody declared."""
    if finding.code not in OF_A_SLOPE or not is_constant_there(finding) or not is_still(near.sample, finding):
        return None
    sample, name = near.sample, str(finding.input)
    drawn = {i.name: i for i in sample.case.inputs if isinstance(i, TensorInput)}
    declared = declared_by(sample.point, name, drawn.get(name))
    if not sample.subject.inferred:
        return undeclared(finding, CONSTANT, declared)
    what = f"that `{name}` has such values (forward is constant wherever backward is wrong)"
    return invented(finding, [what], declare(declared))


def _unless_declared(near: Near, finding: Finding) -> Finding | None:
    """A spec without a range for any input does not say that an iteration converges."""
    return None if declares_values(near.sample) else WHERE_FORWARD_CONVERGES(near, finding)


AT_UNDECLARED: tuple[Reason, ...] = (
    no_derivative_meant,
    _anything_made_up,
    _such_values,
    _constant_there,
)
"""Of inferred inputs, where backward is right at moderate values."""


@dataclass
class Excuses:
    """What excused a mistake at some values excuses it at the others, and is not asked again.

    A guess of sizes, shapes or options is the same at all of them.
    """

    by_mistake: dict[tuple[str, str | None, int | None], Callable[[Finding], Finding]] = field(
        default_factory=dict
    )
    """By code, input and output."""

    def of(self, finding: Finding) -> Finding | None:
        """The finding by what excused it before, or the gradient on which a second derivative rests."""
        found = self.by_mistake.get(_mistake(finding))
        if found is None and finding.code.startswith(OF_SECOND_ORDER):
            found = next((e for (code, *_), e in self.by_mistake.items() if code in OF_A_SLOPE), None)
        return None if found is None else found(finding)

    def note(self, finding: Finding, excused: Finding) -> None:
        """Keep what a finding was excused by."""
        self.by_mistake[_mistake(finding)] = lambda other: replace(
            excused,
            message=excused.message.replace(finding.message, other.message),
            suspected=other.code,
            case=other.case,
            input=other.input,
            output=other.output,
            entries=other.entries,
        )


def guarded(
    sample: Sample,
    results: dict[Family, CheckResult],
    reported: Iterable[Finding] = (),
    excuses: Excuses | None = None,
) -> dict[Family, CheckResult]:
    """Turn errors that a guess may have made into inconclusive findings.

    An error that was `reported` at another point of the target remains: no guess made it there, and the
    target fails by it whatever is found here. `excuses` are those of the target.
    """
    near = Near(sample)
    if not sample.subject.inferred:
        reasons = (_unless_declared,) if sample.point is Point.TYPICAL else ()
        return {f: _excused(near, r, reasons) for f, r in results.items()}
    certain_elsewhere = {_mistake(f) for f in reported if f.severity is Severity.ERROR}

    def is_certain(finding: Finding) -> bool:
        return _mistake(finding) in certain_elsewhere or _is_certain(near, finding)

    kept = {f: _excused(near, r, AT_GUESSES, is_certain, excuses) for f, r in results.items()}
    first = kept.get(Family.GRADCHECK)
    unseen = _unseen(near) if first and first.outcome is Outcome.PASSED else None
    if first and unseen:
        findings = (*first.findings, unseen)
        kept[Family.GRADCHECK] = replace(first, findings=findings, outcome=Outcome.INCONCLUSIVE)
    return kept


def guarded_at_undeclared(sample: Sample, result: CheckResult, excuses: Excuses | None = None) -> CheckResult:
    """The same of findings at undeclared values; what was excused at others is excused there."""
    reasons = AT_UNDECLARED if sample.subject.inferred else (_constant_there,)
    return _excused(Near(sample), result, reasons, excuses=excuses)


def guarded_at_unlisted(sample: Sample, result: CheckResult) -> CheckResult:
    """The same for findings at unlisted sizes."""
    return _excused(Near(sample), result, AT_GUESSES if sample.subject.inferred else (_unless_declared,))


def _excused(
    near: Near,
    result: CheckResult,
    reasons: Sequence[Reason],
    is_certain: Callable[[Finding], bool] = lambda _: False,
    excuses: Excuses | None = None,
) -> CheckResult:
    """The result with errors as inconclusive findings, each by the first reason that there is."""
    reader, excuses = near.sample.subject.reader, excuses or Excuses()

    def judged(finding: Finding) -> Finding:
        certain = hangs_on_no_guess(near.sample, finding.raised) or is_certain(finding)
        if finding.severity is not Severity.ERROR or certain:
            return finding
        known = excuses.of(finding)
        if known is not None:
            return known
        # What backward returns at inputs that are tried here is no news of the sample's own.
        with nullcontext() if reader is None else reader.without_new_remarks():
            excused = next(filter(None, (reason(near, finding) for reason in reasons)), None)
        if excused is not None:
            excuses.note(finding, excused)
        return excused or finding

    findings = tuple(map(judged, result.findings))
    failed = any(f.severity is Severity.ERROR for f in findings)
    excused = result.outcome is Outcome.FAILED and not failed
    return replace(result, findings=findings, outcome=Outcome.INCONCLUSIVE if excused else result.outcome)


def _unseen(near: Near) -> Finding | None:
    """What keeps a gradient that is right from saying anything: zeros, by what was made up."""
    sample, doubts = near.sample, doubts_of(near.sample)
    what = tuple(d.what for d in doubts) or tuple(_constants_of(sample))
    zero = _of_no_effect(sample)
    if what and zero == set(sample.problem.input_names) and not _is_right_elsewhere(sample):
        return invented(sample.finding("GV109", NOTHING), what)
    once = (sample.point, sample.draw) == (Point.TYPICAL, 0) and sample.subject.is_first_of_options
    names = [d.name for d in doubts if d.of_values]
    if not names or not once:
        return None
    several = [*islice(at_other_values(sample, names, rounds=True), MOST_ASKED)]
    told = [a for a in (is_right(Neighbour(other), "") for other in several) if a is not None]
    if len(told) >= LEAST_ASKED and 2 * sum(told) < len(told):
        return invented(sample.finding("GV109", HIDDEN), what)
    for name in sorted(zero):
        if not any(
            name not in _of_no_effect(other) and is_right(Neighbour(other), name) for other in several
        ):
            message = NO_EFFECT.format(name)
            return invented(sample.finding("GV109", message, input=name), what)
    return None


def _of_no_effect(sample: Sample) -> set[str]:
    """Inputs to which a random grad_output gives zeros; none where backward raises."""
    return {name for name, gradient in gradients_at(sample).items() if gradient is None or not gradient.any()}


def _is_right_elsewhere(sample: Sample) -> bool:
    """Whether other draws, or other sizes, have a gradient, which is right there."""
    redrawn = (replace(sample.case, seed=sample.case.seed + offset) for offset in REDRAWN)
    for case in (*redrawn, *sample.subject.spares):
        for point in (sample.point, Point.SPECIAL):
            other = prepare(sample.subject, case, point, sample.draw)
            if isinstance(other, Sample) and is_right(Neighbour(other), ""):
                return True
    return False


def _constants_of(sample: Sample) -> Iterator[str]:
    """Floating tensors that backward gives no gradient: an output may depend on these alone."""
    for argument in sample.arguments:
        value = argument.value
        if isinstance(value, Tensor) and value.is_floating_point() and not argument.differentiable:
            yield f"that `{argument.name}` is a constant (backward returns None for it)"


def _mistake(finding: Finding) -> tuple[str, str | None, int | None]:
    return finding.code, finding.input, finding.output


def _is_certain(near: Near, finding: Finding) -> bool:
    """Whether no guess can have made it: what raises may do so because of what was made up.

    Where two sizes were guessed to differ nothing is certain: what backward does not write of the longer
    one holds anything. Another case has them equal, and shows what hangs on neither.
    """
    doubts: Sequence[Doubt] = doubts_of(near.sample)
    if finding.cause == NOT_REPEATED:
        return False
    if any(d.differ for d in doubts) or any(guesses_behind(near.sample, finding)):
        return False
    if finding.code == OF_THE_COUNT and any(d.of_count or d.name == finding.input for d in doubts):
        return False
    hangs_on_them = finding.raised is not None or finding.code == OF_THE_MATRIX
    return finding.code.startswith(CERTAIN) and not (hangs_on_them and doubts)
