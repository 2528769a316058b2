"""Answers of the judge as findings: what is wrong, where, by how much, what to try."""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor

from gradverify.model import Entries, Entry, Finding, Severity, indexed
from gradverify.verifier.numerics.problem import Block, Layout, Problem
from gradverify.verifier.questions.subject import Sample
from gradverify.verifier.questions.wording import (
    KEEP_THE_DTYPE,
    NEARLY,
    NOT_FINITE,
    WITHIN_TOLERANCE,
    apart,
    count_of,
    gradient_of,
    is_float32,
    map_of,
    number,
    where_nonfinite,
)
from gradverify.verifier.witnesses.answers import Entry as Measured
from gradverify.verifier.witnesses.answers import Imprecise, Reason, Unknown, Wrong

FIRST_ORDER_ONLY = (
    "If no second derivative is meant, say so: @torch.autograd.function.once_differentiable above backward."
)

DETACHED = (
    "Mark backward with @torch.autograd.function.once_differentiable, so that a double backward raises "
    "instead of losing a term; or build it from differentiable operations. To accept it: "
    'ignore: {GV2: "first order only"}.'
)

PARTLY_DETACHED = (
    "Something that backward uses is detached (an intermediate kept on ctx instead of saved as an input or "
    "output, .detach(), .data, no_grad), or a Function that backward calls returns None or zeros for it. "
    "Recompute it in backward from saved inputs."
)

UNSTABLE = (
    "A formula that is right loses its digits there, too: rearrange it, or declare the values that are valid."
)

NO_MEAN = (
    "; forward has a kink there, as where values are equal, and it is no mean of the gradients beside it"
)

OTHER_VALUES = "Try other values: a narrower `range`, `avoid` for a kink, another `domain`."
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
    problem = sample.problem
    output = problem.outputs.blocks[problem.output_positions.index(position)]
    source, name = sample.inputs.blocks[number_of_input], problem.input_names[number_of_input]
    several = sample.outputs_returned > 1
    label = f"y{position}" if several else "y"
    made = _located(sample, answer, (label, name), (output, source), (position, name))
    worst, gradient = answer.entries[0], gradient_of(sample, position, name)
    at = count_of(answer.wrong, answer.checked)
    derivative = f"d {_place(label, output, worst.row)} / d {_place(name, source, worst.column)}"
    derivative = f"{derivative} is {number(worst.expected)}"
    if answer.nonfinite:
        where = "" if answer.matrices is None else where_nonfinite(sample, name, answer.matrices[2])
        has = "a kink, and finite slopes beside it" if answer.kink else f"a finite derivative: {derivative}"
        said = f"{gradient} is NaN or infinite at {at}, where forward has {has}"
        cause = "branch" if where else ""
        return replace(made, code="GV108", message=said, hint=f"{where} {NOT_FINITE}".strip(), cause=cause)
    if answer.rounded:
        said = (
            f"{gradient} loses its digits at {at}, by up to {_by_up_to(answer)}: its own rounding explains it"
        )
        return replace(made, code="GV110", severity=Severity.NOTE, message=said, hint=UNSTABLE)
    if answer.missing and not answer.is_flat:
        return _missing(sample, made, f" through output {position}" if several else "", derivative)
    if answer.matrices is not None and _is_short(*answer.matrices) and not sample.is_native:
        return _of_float32(
            made, gradient, abs(worst.claimed - worst.expected) / max(abs(worst.expected), 1e-300)
        )
    said = f"{gradient} is wrong at {at} of the Jacobian, by up to {_by_up_to(answer)}"
    return replace(made, message=f"{said}{NO_MEAN if answer.kink else ''}")


def _is_short(claimed: Tensor, expected: Tensor, wrong: Tensor) -> bool:
    """Whether the claim has the digits of float32, and nothing else is wrong with it."""
    near = (claimed - expected).abs() <= NEARLY * expected.abs()
    return bool(near[wrong].all()) and is_float32(claimed, expected)


def _of_float32(finding: Finding, gradient: str, off: float) -> Finding:
    """GV110: an error, as backward alone has so few digits."""
    said = f"{gradient} has float32 precision only: off by {number(off)} of its value"
    cause, severity = "float32-inside", Severity.ERROR
    return replace(finding, code="GV110", message=said, hint=KEEP_THE_DTYPE, cause=cause, severity=severity)


def imprecise_gradient(sample: Sample, position: int, number_of_input: int, answer: Imprecise) -> Finding:
    """GV110: an error where the gradient has float32's digits, else a warning."""
    name = sample.problem.input_names[number_of_input]
    output = sample.problem.outputs.blocks[sample.problem.output_positions.index(position)]
    shown = Wrong(answer.entries, answer.count, answer.of, 0.0, both=False)
    blocks = output, sample.inputs.blocks[number_of_input]
    made = replace(_located(sample, shown, ("", ""), blocks, (position, name)), badness=answer.share)
    gradient = gradient_of(sample, position, name)
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


def _place(name: str, block: Block, entry: int | None) -> str:
    """`x[2, 0]`, or `x` for a weighted sum of its entries."""
    return name if entry is None else indexed(name, block.index(entry))


def _located(
    sample: Sample,
    answer: Wrong,
    labels: tuple[str, str],
    blocks: tuple[Block, Block],
    pair: tuple[int, str],
) -> Finding:
    """The finding of an (output, input) with its entries and a picture of them, before anything is said."""
    output, source = blocks

    def shown(e: Measured) -> Entry:
        row = () if e.row is None else output.index(e.row)
        return Entry(row, source.index(e.column), e.claimed, e.expected, e.bound)

    entries = Entries(answer.wrong, answer.checked, tuple(map(shown, answer.entries)))
    worst = answer.entries[0]
    badness = abs(worst.claimed - worst.expected) / max(worst.bound, 1e-300)
    return sample.finding(
        "GV101",
        "",
        output=pair[0],
        input=pair[1],
        entries=entries,
        map=None if answer.matrices is None else map_of(*answer.matrices, output, source, labels),
        badness=badness if math.isfinite(badness) else 1e300,
    )


def _missing(sample: Sample, finding: Finding, through: str, derivative: str) -> Finding:
    reader, name = sample.subject.reader, finding.input or ""
    is_none = reader is not None and reader.returned_none.get(sample.position_of(name), False)
    what = "backward returns None for" if is_none else "backward gives zeros for"
    return replace(
        finding,
        code="GV107",
        message=f"{what} `{name}`{through}, but the function depends on it: {derivative}",
        hint=f"Return the gradient of `{name}`. If none is intended, say so in the spec: "
        f"`{name}: {{..., requires_grad: false}}`.",
    )


def not_known(sample: Sample, position: int, name: str, answer: Unknown, *, second: bool = False) -> Finding:
    """GV109 for a pair of which a mismatch stays undecided."""
    reason, hint = WHY[answer.reason]
    what = gradient_of(sample, position, name)
    what = f"the second derivative with respect to `{name}`" if second else what
    differs = "differs from what is expected"
    if answer.entry is not None and answer.entry.row is not None:
        differs = "is {}, expected {}".format(*apart(answer.entry.claimed, answer.entry.expected))
    said = f"{what} {differs}, and nothing decides: {reason}"
    return sample.finding("GV109", said, hint=hint, output=position, input=name)


def wrong_second(
    sample: Sample,
    problem: Problem,
    names: tuple[str, ...],
    pair: tuple[int, int],
    answer: Wrong,
    *,
    cut: bool,
) -> Finding:
    """GV201, GV202: the derivative of the gradient of one input by another, or by grad_output."""
    output, source = problem.outputs.blocks[pair[0]], Layout.of(problem.primals).blocks[pair[1]]
    of, by = names[pair[0]], names[pair[1]]
    made = _located(sample, answer, (f"g_{of}", by), (output, source), (pair[0], by))
    worst = answer.entries[0]
    place = f"d grad of {_place(of, output, worst.row)} / d {_place(by, source, worst.column)}"
    place = f"{place} is {number(worst.expected)}"
    if cut:
        return replace(
            made,
            code="GV202",
            message=f"the second derivative is silently cut: for autograd the gradient of `{of}` depends on "
            f"nothing, but {place}",
            hint=DETACHED,
            cause="detached",
            severity=Severity.WARNING if sample.subject.inferred else Severity.ERROR,
            entries=None,
            map=None,
        )
    if answer.missing:
        return replace(
            made,
            code="GV202",
            message=f"part of the second derivative is silently cut: the gradient of `{of}` does not depend "
            f"on `{by}` for autograd, but {place}",
            hint=f"{PARTLY_DETACHED} {FIRST_ORDER_ONLY}",
            cause="detached",
        )
    return replace(
        made,
        code="GV201",
        message=f"the second derivative (gradient of `{of}` by `{by}`) is wrong at "
        f"{count_of(answer.wrong, answer.checked)}, by up to {_by_up_to(answer)}",
        hint="The first derivative is right. What backward computes must itself be differentiable in its "
        f"inputs and in grad_output. {FIRST_ORDER_ONLY}",
    )
