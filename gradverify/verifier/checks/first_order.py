"""First order: is backward the derivative of forward (GV101, GV102, GV106 to GV108, GV110, GV003)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gradverify.model import Finding, Outcome, RaisedError, Severity
from gradverify.verifier.checks.linearity import nonlinearity
from gradverify.verifier.checks.result import CheckResult, FirstOrder, Uncovered, outcome_of
from gradverify.verifier.checks.subject import Sample, first_line
from gradverify.verifier.checks.wording import (
    blocks,
    count_of,
    entries_of,
    label,
    largest_difference,
    map_of,
    number,
    output_name,
    part,
)
from gradverify.verifier.guard import Raised
from gradverify.verifier.numerics.compare import Comparison
from gradverify.verifier.numerics.flat import Block
from gradverify.verifier.numerics.jacobian import NumericalJacobian
from gradverify.verifier.numerics.verdict import NotJudged, judge

NEARLY = 1e-4
"""Relative error of a value that is right but for a lower precision inside."""


def first_order(sample: Sample) -> FirstOrder:
    """Both Jacobians, compared; every difference confirmed by an independent measurement."""
    if sample.disconnected:
        return _disconnected(sample)
    judged = judge(sample.problem, rtol=sample.subject.settings.rtol, atol=sample.subject.settings.atol)
    if isinstance(judged, Raised):
        return FirstOrder(CheckResult((backward_raised(sample, judged.error),), Outcome.FAILED))
    if isinstance(judged, NotJudged):
        return FirstOrder(_nothing_known(sample, judged.reason))
    nonlinear = nonlinearity(sample, judged.comparison.analytical, judged.measured)
    if nonlinear is not None:
        return FirstOrder(CheckResult((nonlinear,), Outcome.FAILED), judged.comparison, judged.measured)
    findings: list[Finding] = []
    uncovered: dict[tuple[int, str], Uncovered] = {}
    names, positions = sample.problem.input_names, sample.problem.output_positions
    for o, output, i, source in blocks(sample.problem.outputs, sample.inputs):
        finding = _judge_block(sample, judged.comparison, positions[o], output, names[i], source)
        if finding is not None:
            findings.append(finding)
        unknown = _uncovered(judged.comparison, judged.measured, output, source)
        if unknown is not None:
            uncovered[positions[o], names[i]] = unknown
    result = CheckResult(
        tuple(findings), outcome_of(findings), uncovered, smallest_visible_error(judged.comparison)
    )
    return FirstOrder(result, judged.comparison, judged.measured)


def backward_raised(sample: Sample, error: RaisedError, when: str = "") -> Finding:
    """GV102, with the commonest accident put into words: nothing was saved for backward."""
    said = f"backward raised {error.type}{when}: {first_line(error.message)}"
    hint = ""
    last = error.frames[-1] if error.frames else None
    if last is not None and "saved_tensors" in last.source and "unpack" in error.message:
        if "got 0" in error.message:
            said = f"backward raised{when}: no saved tensors ({error.type}: {first_line(error.message)})"
            hint = "forward never calls ctx.save_for_backward: call it with the tensors that backward unpacks."
        else:
            hint = "Save as many tensors in forward as backward unpacks, in the same order."
    return sample.finding("GV102", said, hint=hint, raised=error)


def smallest_visible_error(comparison: Comparison) -> float | None:
    """The relative error that every covered entry would have shown.

    None where nothing is covered, or where the derivative is zero everywhere: no error relative to that.
    """
    judged = comparison.covered & ~comparison.kinks & ~comparison.wrong
    visible = comparison.visible[judged & (comparison.visible > 0)]
    return visible.max().item() if visible.numel() else None


def is_float32(values: Tensor, expected: Tensor) -> bool:
    """Whether values carry float32 precision only: each survives a cast and is near what was expected, which
    does not survive one."""
    same = values.to(torch.float32).to(torch.float64) == values
    near = (values - expected).abs() <= NEARLY * expected.abs()
    informative = (values != 0) & (expected.to(torch.float32).to(torch.float64) != expected)
    return int(informative.sum()) >= 4 and bool((same & near)[informative].all())


def _judge_block(  # noqa: PLR0913 - one block in all its parts
    sample: Sample, comparison: Comparison, position: int, output: Block, name: str, source: Block
) -> Finding | None:
    analytical, numerical = part(comparison.analytical, output, source), part(comparison.numerical, output, source)
    wrong, nonfinite = part(comparison.wrong, output, source), part(comparison.nonfinite, output, source)
    bound = part(comparison.bound, output, source)
    imprecise = part(comparison.imprecise, output, source)
    marked = nonfinite if nonfinite.any() else wrong if wrong.any() else imprecise
    if not marked.any():
        return None
    entries = entries_of(analytical, numerical, bound, marked, output, source)
    difference = (analytical - numerical).abs()
    judged = bound.isfinite() & ~part(comparison.kinks, output, source)
    several = sample.outputs_returned > 1
    names = (f"y{position}" if several else "y", name)
    finding = sample.finding(
        "GV101",
        "",
        output=position,
        input=name,
        entries=entries,
        map=map_of(difference, marked, judged, output, source, names),
        badness=(difference[marked].max() / bound[marked].max().clamp_min(1e-300)).nan_to_num(1e300).item(),
    )
    of_output = f" of output {position}" if several else ""
    how_many = count_of(entries.wrong, entries.checked)
    worst = entries.worst[0]
    place = f"d {label(names[0], worst.output)} / d {label(name, worst.input or ())}"
    if nonfinite.any():
        return replace(
            finding,
            code="GV108",
            message=f"the gradient{of_output} with respect to `{name}` is NaN or infinite at {how_many}, "
            f"where the derivative is finite: {place} is {number(worst.expected)}",
            hint="Look for 0/0, log(0) or sqrt(0) in backward at these inputs; mask with torch.where on the "
            "denominator, not on the result.",
        )
    if wrong.any() and not analytical.any():
        return _missing(sample, finding, name, of_output, place, worst.expected)
    if is_float32(analytical, numerical):
        return _float32_inside(finding, name, of_output, entries.worst[0].actual, entries.worst[0].expected)
    if wrong.any():
        return replace(
            finding,
            message=f"the gradient{of_output} with respect to `{name}` is wrong at {how_many} of the Jacobian, "
            f"by up to {largest_difference(entries)}",
        )
    relative = (difference / numerical.abs().clamp_min(1e-300))[imprecise].max().item()
    return replace(
        finding,
        code="GV110",
        severity=Severity.WARNING,
        message=f"the gradient{of_output} with respect to `{name}` is slightly off at {how_many}: "
        f"by up to {number(relative)} of its value, more than rounding explains",
        hint="A truncated constant or a lower precision inside backward; within the tolerance, so no failure.",
    )


def _missing(  # noqa: PLR0913 - parts of one sentence
    sample: Sample, finding: Finding, name: str, of_output: str, place: str, expected: float
) -> Finding:
    reader = sample.subject.reader
    is_none = reader is not None and reader.returned_none.get(sample.position_of(name), False)
    what = "backward returns None for" if is_none else "the gradient is zero everywhere for"
    made = replace(
        finding,
        code="GV107",
        message=f"{what} `{name}`{of_output and f' through{of_output[3:]}'}, but the function depends on it: "
        f"{place} is {number(expected)}",
        hint=f"Return the gradient of `{name}`. If none is intended, say so in the spec: "
        f"`{name}: {{..., requires_grad: false}}`.",
    )
    if is_none and sample.subject.inferred:
        return replace(
            made,
            severity=Severity.NOTE,
            message=f"`{name}` counts as a constant: backward always returns None for it, though the function "
            f"depends on it ({place} is {number(expected)})",
        )
    return made


def _float32_inside(finding: Finding, name: str, of_output: str, actual: float, expected: float) -> Finding:
    relative = abs(actual - expected) / max(abs(expected), 1e-300)
    return replace(
        finding,
        code="GV110",
        severity=Severity.ERROR,
        cause="float32-inside",
        message=f"the gradient{of_output} with respect to `{name}` has float32 precision only: right to "
        f"{number(relative)} of its value",
        hint="Something in backward computes in float32 (`.float()`, torch.empty without dtype, a float32 "
        "constant): keep the dtype of grad_output.",
    )


def _uncovered(
    comparison: Comparison, measured: NumericalJacobian, output: Block, source: Block
) -> Uncovered | None:
    covered, kinks = part(comparison.covered, output, source), part(comparison.kinks, output, source)
    wrong = part(comparison.wrong | comparison.nonfinite, output, source)
    mask = ~covered & ~wrong & ~kinks
    if not covered.any() and not wrong.any() and kinks.any():
        mask |= kinks
    if not mask.any():
        return None
    error = part(measured.error, output, source)[mask]
    if not error.isfinite().all():
        reason = "forward jumps or is not finite around these inputs"
    elif part(comparison.kinks, output, source)[mask].all():
        reason = "these inputs lie on a kink of forward"
    else:
        reason = (
            f"the numerical derivative is known to ±{number(error.max().item())} only: forward is noisy "
            "(float32 inside, or large numbers that cancel)"
        )
    return Uncovered(mask, reason)


def _nothing_known(sample: Sample, reason: str) -> CheckResult:
    uncovered = {
        (sample.problem.output_positions[o], sample.problem.input_names[i]): Uncovered(
            torch.ones(output.stop - output.start, source.stop - source.start, dtype=torch.bool), reason
        )
        for o, output, i, source in blocks(sample.problem.outputs, sample.inputs)
    }
    return CheckResult((), Outcome.INCONCLUSIVE, uncovered)


def _disconnected(sample: Sample) -> FirstOrder:
    names = " and ".join(output_name(p, sample.outputs_returned) for p in sample.disconnected)
    finding = sample.finding(
        "GV003",
        f"{names} has no gradient: nothing connects it to the inputs",
        hint="Something detaches it (no_grad, .data, .detach(), a call that autograd does not know).",
        output=sample.disconnected[0],
    )
    return FirstOrder(CheckResult((finding,), Outcome.FAILED))

