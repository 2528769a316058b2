"""What checks say about a sample: results, and answers of the judge as findings with what to try.

Matrices become entries, a small map, and sentences. Findings on inferred inputs become inconclusive ones,
each with its reason. What of a derivative could not be judged has a reason, too, and each another remedy
(GV109).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gradverify.model import (
    Entries,
    Entry,
    Finding,
    JacobianMap,
    Outcome,
    RaisedError,
    Severity,
    Swept,
    indexed,
)
from gradverify.rules import rule
from gradverify.verifier.numerics.problem import Block, Layout
from gradverify.verifier.questions.subject import Sample
from gradverify.verifier.witnesses.answers import (
    WORST,
    Asked,
    Imprecise,
    Judgement,
    Reason,
    Right,
    Unknown,
    Wrong,
)
from gradverify.verifier.witnesses.answers import Entry as Measured
from gradverify.verifier.witnesses.claim import Map
from gradverify.verifier.witnesses.rounding import has_digits_of_float32

OTHER_VALUES = "Try other values: a narrower `range`, `avoid` for a kink, another `domain`."
"""What to try where values are to blame."""

SAME_NUMBERS = (
    "Draw random numbers from torch's, NumPy's or Python's global generator, which are replayed for each "
    "call, or take them as an input. What it reads beside its inputs must not change from call to call."
)
"""What to try where forward gives other values at the same inputs."""


NOT_REPEATED = "not-repeated"
"""The cause of a gradient that is another one each time, forward and every random state being the same."""


WORSE = (Outcome.NOT_RUN, Outcome.PASSED, Outcome.INCONCLUSIVE, Outcome.FAILED)
"""Outcomes from the least to the most telling: what has several has its worst."""


@dataclass(frozen=True)
class Uncovered:
    """Why one (output, input) pair could not be judged at this point."""

    reason: str
    hint: str = OTHER_VALUES


@dataclass(frozen=True)
class CheckResult:
    """Findings and the outcome of one family at one point."""

    findings: tuple[Finding, ...] = ()
    outcome: Outcome = Outcome.PASSED
    uncovered: dict[tuple[int, str], Uncovered] = field(default_factory=dict)
    """By (output position, input name)."""
    smallest_visible_error: float | None = None
    capability: str = ""
    """`yes`, `no`, `wrong` or `not-run`: of a double backward, or of one of torch's transforms."""
    capabilities: tuple[tuple[str, str], ...] = ()
    """What torch's transforms made of it: (name, `yes` | `no` | `wrong` | `not-run`) pairs."""
    swept: Swept = field(default_factory=Swept)
    """What the questions about a verified case went over."""
    not_judged: int = 0
    """Entries that differ by what the rounding of the target's own operations explains."""
    witnesses: frozenset[str] = frozenset()
    """Those that spoke."""

    @staticmethod
    def of(*found: Finding | None, calls: Sequence[str] = (), **fields: Any) -> CheckResult:  # noqa: ANN401
        """Of the findings that there are, failed with an error; the names of the calls that gave them."""
        findings = tuple(one for one in found if one is not None)
        return CheckResult(
            findings, outcome_of(findings), swept=Swept(calls=tuple(dict.fromkeys(calls))), **fields
        )

    def beside(self, other: CheckResult) -> CheckResult:
        """Both results of one family as one: the worse outcome, and all that they say."""
        return replace(
            self,
            findings=(*self.findings, *other.findings),
            outcome=max(self.outcome, other.outcome, key=WORSE.index),
            capabilities=(*self.capabilities, *other.capabilities),
            swept=self.swept.joined(other.swept),
            witnesses=self.witnesses | other.witnesses,
        )


@dataclass(frozen=True)
class FirstOrder:
    """What is known of the gradient: later checks build on it."""

    result: CheckResult
    single_precision: bool = False
    """Forward computes in float32 inside, so backward may."""
    proven: bool = False
    """By the witnesses, or by torch under `--engine torch`."""
    judged: bool = True
    """Something of the Jacobian could be measured."""
    raised: RaisedError | None = None
    """What backward raised."""
    asked: Asked | None = None
    """The claim with its witnesses; None where nothing could be asked."""
    judgement: Judgement | None = None
    """None where backward raised."""

    @property
    def verified(self) -> bool:
        """Backward gives the derivative at this point, as far as it could be measured."""
        return self.proven and self.result.outcome is Outcome.PASSED

    @property
    def whole(self) -> Asked | None:
        """The claim with its witnesses where every entry is right: what builds on it may be asked."""
        if self.judgement is None:
            return None
        right = all(isinstance(a, Right | Imprecise) for a in self.judgement.answers.values())
        return self.asked if right else None

    @property
    def closed(self) -> bool:
        """Proof or agreement closed it: there is no kink, and no digits are lost."""
        return self.judgement is not None and self.judgement.closed


def errors_of(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The errors among some findings."""
    return tuple(f for f in findings if f.severity is Severity.ERROR)


def is_open(findings: Iterable[Finding]) -> bool:
    """Whether something could not be verified."""
    return any(f.code == "GV109" for f in findings)


def outcome_of(findings: Iterable[Finding]) -> Outcome:
    """Failed with an error among the findings, else passed."""
    return Outcome.FAILED if errors_of(findings) else Outcome.PASSED


NOT_RUN = CheckResult(outcome=Outcome.NOT_RUN)
"""What was not asked."""


MAP_LIMIT = 24
"""Rows and columns up to which a Jacobian block is drawn."""


def vector_entries(
    actual: Tensor,
    expected: Tensor,
    wrong: Tensor,
    block: Block,
    *,
    of_output: bool = False,
    unit: float = 0.0,
) -> Entries:
    """The wrong entries of one input, or of one output, worst first. All tensors are flat, of all of them.

    `unit` is the share of its value by which an entry may be off.
    """
    actual, expected, wrong = (t[block.span] for t in (actual, expected, wrong))
    difference = (actual - expected).abs().nan_to_num(torch.inf, torch.inf)
    count = int(wrong.sum())
    order = torch.where(wrong, difference, -1.0).argsort(descending=True, stable=True)[:WORST]
    worst = []
    for k in order[:count].tolist():
        index = block.index(block.start + k)
        output, source = (index, None) if of_output else ((), index)
        wanted = expected[k].item()
        worst.append(Entry(output, source, actual[k].item(), wanted, unit * abs(wanted) if unit else 0.0))
    return Entries(count, wrong.numel(), tuple(worst), compared_with="reference")


def map_of(
    claimed: Tensor,
    expected: Tensor,
    wrong: Tensor,
    output: Block,
    source: Block,
    names: tuple[str, str],
) -> JacobianMap | None:
    """A picture of one block: how far each wrong entry is off, in steps below the largest."""
    difference = (claimed - expected).abs()
    rows, columns = wrong.shape
    if rows > MAP_LIMIT or columns > MAP_LIMIT or rows * columns < 2 or not wrong.any():
        return None
    largest = torch.where(difference.isfinite(), difference, 0.0)[wrong].max().item() or 1.0
    slight, half, most = (float(f"{largest * share:.1g}") for share in (0.01, 0.1, 0.5))
    steps = torch.stack([~(difference < t) for t in (slight, half, most)]).sum(dim=0)
    levels = torch.where(wrong, 1 + steps, 0).tolist()
    return JacobianMap(
        row_labels=tuple(indexed(names[0], output.index(output.start + i)) for i in range(rows)),
        column_labels=tuple(indexed(names[1], source.index(source.start + j)) for j in range(columns)),
        levels=tuple(map(tuple, levels)),
        thresholds=(slight, half, most),
        actual=_rounded(claimed),
        expected=_rounded(expected),
    )


def _rounded(matrix: Tensor) -> tuple[tuple[float, ...], ...]:
    """The values to the digits that a report shows."""
    return tuple(tuple(float(number(value)) for value in row) for row in matrix.tolist())


def output_name(sample: Sample, position: int) -> str:
    """How a sentence calls an output: not at all where there is only one."""
    return f"output {position}" if sample.outputs_returned > 1 else "the output"


def gradient_of(sample: Sample, position: int, name: str) -> str:
    """How a sentence calls the gradient of one (output, input)."""
    of_output = f" of output {position}" if sample.outputs_returned > 1 else ""
    return f"the gradient{of_output} with respect to `{name}`"


def apart(one: float, other: float) -> tuple[str, str]:
    """Two numbers with four significant digits each, or with as many as tell them apart."""
    said = number(one), number(other)
    for digits in range(6, 18, 2):
        if said[0] != said[1] or one == other:
            break
        said = f"{one:.{digits}g}", f"{other:.{digits}g}"
    return said


def number(value: float) -> str:
    """Four significant digits; no sign before a zero."""
    return f"{value + 0.0:.4g}"


def count_of(wrong: int, checked: int) -> str:
    """`3 of 60 entries`, `all 60 entries`, `its only entry`."""
    if checked == 1:
        return "its only entry"
    return f"all {checked} entries" if wrong == checked else f"{wrong} of {checked} entries"


def percent(share: float) -> str:
    """A share in percent; 100 is said of a whole alone."""
    return "100 %" if share == 1 else f"{min(100 * share, 99.0):.2g} %"


def listed_names(names: Sequence[str]) -> str:
    """`x`, `x` and `y`, `x`, `y` and `z`: in backticks."""
    return _listed([f"`{name}`" for name in names])


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


MOST_NAMED = 3
"""Guesses that one sentence names."""

IF_VALID = "If such inputs are valid, this is a mistake: confirm them in the spec `gradverify init` drafts."


def invented(finding: Finding, invented: Sequence[str], hint: str = IF_VALID) -> Finding:
    """The finding on inputs of which something was guessed."""
    named = list(invented)
    if len(named) > MOST_NAMED:  # `gradverify init` writes them all
        named = [*named[: MOST_NAMED - 1], f"{len(named) - MOST_NAMED + 1} others"]
    said = f"inputs inferred: {finding.message}; but gradverify guessed {_listed(named)}"
    return _inconclusive(finding, said, hint)


def if_guessed(finding: Finding, what: Iterable[str]) -> Finding | None:
    """The finding as one that hangs on what was guessed; None where that is nothing."""
    named = tuple(filter(None, what))
    return invented(finding, named) if named else None


def undeclared(finding: Finding, why: str, declared: str) -> Finding:
    """The finding at values that a spec neither declares nor excludes; `declared` is what excludes them."""
    said = f"{finding.message}; but {why}, so they may not be valid"
    said = f"at values that the spec neither lists nor excludes, {said}"
    return _inconclusive(finding, said, declare(declared))


def declare(what: str) -> str:
    """How a spec tells a domain from a mistake."""
    return (
        f"If such values are not valid, say so in a spec: {what}. If they are, this is a mistake: declare "
        "them, and it fails."
    )


def joined(signs: Sequence[str]) -> str:
    """`that ... (one sign; another)` of several `that ... (a sign)`."""
    first, *others = signs
    more = "".join(f"; {one.partition('(')[2].removesuffix(')')}" for one in others)
    return f"{first.removesuffix(')')}{more})" if others else first


MEANT = (
    "If it is meant, say so in a spec: `surrogate: {reason: ...}`, or `surrogate:` with a composite "
    "whose gradient it is. If one input is computed from others, make them together: `arguments:`. "
    "Else this is a mistake."
)


def deliberate(finding: Finding, meant: str) -> Finding:
    """The finding where the source or the numbers say that no derivative is meant."""
    return replace(invented(finding, [meant], MEANT), cause="looks-surrogate")


def refused(finding: Finding) -> Finding:
    """The finding of an exception that backward raises on purpose."""
    said = f"on inferred inputs {finding.message}; forward took them, but they may not be what is meant"
    return _inconclusive(
        finding, said, "Write a spec with valid inputs (shapes, domain, range) and run again."
    )


def doubted(finding: Finding, declared: str) -> Finding:
    """The finding that is not there at inputs of another kind, which a spec declares as `declared`."""
    said = f"on inferred inputs {finding.message}; but not with {declared}, so these may not be valid"
    return _inconclusive(finding, said, declare(declared))


def _inconclusive(finding: Finding, message: str, hint: str) -> Finding:
    open_now = replace(finding, code="GV109", suspected=finding.code, severity=rule("GV109").severity)
    return replace(open_now, message=message, hint=hint)


def not_verified(sample: Sample, position: int, name: str, unknown: Uncovered) -> Finding:
    """That one (output, input) pair could not be judged, and why."""
    said = f"{gradient_of(sample, position, name)} could not be verified: {unknown.reason}"
    return sample.finding("GV109", said, hint=unknown.hint, output=position, input=name)


KEEP_THE_DTYPE = (
    "Something in backward computes in float32 (`.float()`, torch.empty without dtype, a float32 constant): "
    "keep the dtype of grad_output."
)

WITHIN_TOLERANCE = (
    "A truncated constant, a series that ends early or a lower precision inside backward; it is within the "
    "tolerance."
)

NOT_FINITE = (
    "Look for 0/0, log(0), sqrt(0) or an overflow in backward at these inputs; mask with torch.where on the "
    "denominator, not on the result."
)


NEARLY = 1e-4
"""Relative error of a value that is right but for a lower precision inside."""

ONCE = "@torch.autograd.function.once_differentiable"

FIRST_ORDER_ONLY = f"If no second derivative is meant, say so: {ONCE} above backward."

DETACHED = (
    f"Mark backward with {ONCE}, so that a double backward raises instead of losing a term; or build it from "
    'differentiable operations. To accept it: ignore: {GV2: "first order only"}.'
)

NOT_DIFFERENTIABLE = (
    "What backward computes must itself be differentiable in its inputs and in grad_output. A constant there "
    "is what forward keeps without being an input or output, and what .detach(), .data, no_grad, NumPy or a "
    f"Function that returns None for it gives: compute it in backward from saved inputs. {FIRST_ORDER_ONLY}"
)

UNSTABLE = (
    "A formula that is right loses its digits there, too: rearrange it, or declare the values that are valid."
)

NO_MEAN = (
    "; forward has a kink there, as where values are equal, and it is no mean of the gradients beside it"
)

NOT_MEANT = (
    "Return the gradient of `{name}`. If none is intended, say so in the spec: "
    "`{name}: {{..., requires_grad: false}}`."
)

NO_VALUE = "Leave out the sizes or values at which it is nan or inf: they have no derivative."
REFERENCE = (
    "Let forward compute in the dtype it is given, or name a composite of plain torch operations as "
    "`reference:`: it is a witness that sees all digits."
)
SHORT = (
    "Check the formula with everything kept in the dtype of the input; --dtype shows what shorter ones cost. "
    "If forward rounds, and backward is meant to pass over it, declare a `surrogate`."
)
TOLERANCE = "Stop at a smaller tolerance, or say in the spec how far off it may be: `tolerance: {rtol: ...}`."
EFFORT = "Declare a case with smaller sizes: there every entry is measured."

WHY: dict[Reason, tuple[str, str]] = {
    Reason.NOISE: (
        "the numerical derivative is too noisy here (float32, or large numbers that cancel)",
        REFERENCE,
    ),
    Reason.NO_VALUE: ("forward itself is not finite at these inputs", NO_VALUE),
    Reason.DIVERGES: ("forward jumps, or is not finite, around these inputs", OTHER_VALUES),
    Reason.KINK: ("these inputs lie on a kink of forward", OTHER_VALUES),
    Reason.END: (
        "that is at an end of the declared range, and whether forward has a kink there shows only beyond it",
        "If it has none, widen the `range` a little. If it has, keep away from it with `avoid`.",
    ),
    Reason.BUDGET: ("measuring it takes more calls than one target may cost", EFFORT),
    Reason.LOOP: (
        "forward repeats a step, and if it stops before it has converged, the gradient may be off by as much",
        TOLERANCE,
    ),
    Reason.ROUNDING: ("it differs by no more than the round-off of the target's own operations", REFERENCE),
    Reason.HIDDEN: ("forward hides a part of itself from torch, and the numbers are too noisy", REFERENCE),
    Reason.FLOAT32: (
        "forward keeps numbers in float32 on the way, and it differs by no more than their rounding",
        "has no dtype: give it that of the input.",
    ),
    Reason.SIXTEEN_BITS: (
        "numbers go through 16 bits or fewer on the way, too coarse to tell a mistake from their rounding",
        SHORT,
    ),
}
"""Why an entry could not be judged, and what to try."""


def wrong_gradient(sample: Sample, position: int, number_of_input: int, answer: Wrong) -> Finding:
    """GV101, GV107, GV108, GV110."""
    made, derivative = _located(sample, position, number_of_input, answer)
    name, worst = made.input or "", answer.entries[0]
    gradient, at = gradient_of(sample, position, name), count_of(answer.wrong, answer.checked)
    code, hint = "GV101", ""
    said = f"{gradient} is wrong at {at} of the Jacobian, by up to {_by_up_to(answer)}{NO_MEAN * answer.kink}"
    if answer.nonfinite:
        has = "a kink, and finite slopes beside it" if answer.kink else f"a finite derivative: {derivative}"
        code, hint = "GV108", NOT_FINITE
        said = f"{gradient} is NaN or infinite at {at}, where forward has {has}"
    elif answer.rounded:
        code, hint, made = "GV110", UNSTABLE, replace(made, severity=Severity.NOTE)
        said = (
            f"{gradient} loses its digits at {at}, by up to {_by_up_to(answer)}: its own rounding explains it"
        )
    elif answer.missing and not answer.is_flat:
        reader, through = sample.subject.reader, f" through output {position}" * (sample.outputs_returned > 1)
        is_none = reader is not None and reader.returned_none.get(sample.position_of(name), False)
        what = "returns None" if is_none else "gives zeros"
        code, hint = "GV107", NOT_MEANT.format(name=name)
        said = f"backward {what} for `{name}`{through}, but the function depends on it: {derivative}"
    elif answer.matrices is not None and _is_short(*answer.matrices) and not sample.is_native:
        return _of_float32(made, gradient, abs(worst.claimed - worst.expected) / abs(worst.expected))
    return replace(made, code=code, message=said, hint=hint)


def _is_short(claimed: Tensor, expected: Tensor, wrong: Tensor) -> bool:
    """Whether the claim has the digits of float32, and nothing else is wrong with it."""
    near = (claimed - expected).abs() <= NEARLY * expected.abs()
    return bool((near & (expected != 0))[wrong].all()) and has_digits_of_float32(claimed)


def _of_float32(finding: Finding, gradient: str, off: float) -> Finding:
    """GV110: an error, as backward alone has so few digits."""
    said = f"{gradient} has float32 precision only: off by {number(off)} of its value"
    cause, severity = "float32-inside", Severity.ERROR
    return replace(finding, code="GV110", message=said, hint=KEEP_THE_DTYPE, cause=cause, severity=severity)


def imprecise_gradient(sample: Sample, position: int, number_of_input: int, answer: Imprecise) -> Finding:
    """GV110: an error where the gradient has float32's digits, else a warning."""
    shown = Wrong(answer.entries, answer.count, answer.of, 0.0, both=False)
    made = replace(_located(sample, position, number_of_input, shown)[0], badness=answer.share)
    gradient = gradient_of(sample, position, made.input or "")
    if answer.short:
        return _of_float32(made, gradient, answer.share)
    places, off = count_of(answer.count, answer.of), number(answer.share)
    said = f"{gradient} is slightly off at {places}: by up to {off} of its value, more than rounding explains"
    return replace(made, code="GV110", message=said, hint=WITHIN_TOLERANCE, severity=Severity.WARNING)


def _by_up_to(answer: Wrong) -> str:
    worst = answer.entries[0]
    if not math.isfinite(worst.claimed):
        return f"{worst.claimed} (the derivative is {number(worst.expected)})"
    got, wanted = apart(worst.claimed, worst.expected)
    return f"{number(abs(worst.claimed - worst.expected))} (backward {got}, {wanted} expected)"


def _located(sample: Sample, position: int, number_of_input: int, answer: Wrong) -> tuple[Finding, str]:
    """The finding of an (output, input), and the derivative at its worst entry."""
    problem = sample.problem
    label = f"y{position}" if sample.outputs_returned > 1 else "y"
    output = problem.outputs.blocks[problem.output_positions.index(position)]
    source, name = sample.inputs.blocks[number_of_input], problem.input_names[number_of_input]
    return _shown(sample, answer, (label, label), (output, source), (position, name))


def _shown(
    sample: Sample,
    answer: Wrong,
    labels: tuple[str, str],
    blocks: tuple[Block, Block],
    pair: tuple[int, str],
) -> tuple[Finding, str]:
    """A pair with its entries and a picture of them, before anything is said; its worst derivative in words.

    `labels` are what a picture and a sentence call what is differentiated.
    """
    output, source = blocks

    def shown(e: Measured) -> Entry:
        row = () if e.row is None else output.index(e.row)
        return Entry(row, source.index(e.column), e.claimed, e.expected, e.bound)

    entries, worst = tuple(map(shown, answer.entries)), answer.entries[0]
    badness = abs(worst.claimed - worst.expected) / max(worst.bound, 1e-300)
    found = sample.finding(
        "GV101",
        "",
        output=pair[0],
        input=pair[1],
        entries=Entries(answer.wrong, answer.checked, entries),
        map=None
        if answer.matrices is None
        else map_of(*answer.matrices, output, source, (labels[0], pair[1])),
        badness=badness if math.isfinite(badness) else 1e300,
    )
    # Without a row it is a weighted sum of the entries.
    of = labels[1] if worst.row is None else indexed(labels[1], entries[0].output)
    by = indexed(pair[1], entries[0].input or ())
    return found, f"d {of} / d {by} is {number(worst.expected)}"


def not_known(sample: Sample, position: int, name: str, answer: Unknown, *, second: bool = False) -> Finding:
    """GV109 for a pair of which a mismatch stays undecided."""
    reason, hint = WHY[answer.reason]
    what = (
        f"the second derivative with respect to `{name}`" if second else gradient_of(sample, position, name)
    )
    differs = "differs from what is expected"
    if answer.entry is not None and answer.entry.row is not None:
        differs = "is {}, expected {}".format(*apart(answer.entry.claimed, answer.entry.expected))
    said = f"{what} {differs}, and nothing decides: {reason}"
    return sample.finding("GV109", said, hint=hint, output=position, input=name)


def wrong_second(sample: Sample, problem: Map, pair: tuple[int, int], answer: Wrong, *, cut: bool) -> Finding:
    """GV201, GV202: the derivative of the gradient of one input by another, or by grad_output.

    `cut`: autograd has no gradient depend on anything.
    """
    blocks = problem.outputs.blocks[pair[0]], Layout.of(problem.primals).blocks[pair[1]]
    of, by = problem.input_names[pair[0]], problem.input_names[pair[1]]
    made, place = _shown(sample, answer, (f"g_{of}", f"grad of {of}"), blocks, (pair[0], by))
    if not (cut or answer.missing):
        said = (
            f"the second derivative (gradient of `{of}` by `{by}`) is wrong at "
            f"{count_of(answer.wrong, answer.checked)}, by up to {_by_up_to(answer)}"
        )
        return replace(
            made, code="GV201", message=said, hint=f"The first derivative is right. {NOT_DIFFERENTIABLE}"
        )
    part, depends = ("", "depends on nothing") if cut else ("part of ", f"does not depend on `{by}`")
    warns = cut and sample.subject.inferred
    return replace(
        made,
        code="GV202",
        message=f"{part}the second derivative is silently cut: for autograd the gradient of `{of}` "
        f"{depends}, but {place}",
        hint=DETACHED if cut else NOT_DIFFERENTIABLE,
        cause="detached",
        severity=Severity.WARNING if warns else Severity.ERROR,
        entries=None if cut else made.entries,
        map=None if cut else made.map,
    )
