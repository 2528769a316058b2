"""What to say about one (output, input) block of the Jacobian: GV101, GV107, GV108, GV110."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gradverify.model import Entries, Finding, Severity, indexed
from gradverify.model.points import is_declared
from gradverify.verifier.checks.subject import Sample
from gradverify.verifier.checks.wording import count_of, entries_of, largest_difference, map_of, number, part
from gradverify.verifier.numerics.compare import Comparison
from gradverify.verifier.numerics.flat import Block

KEEP_THE_DTYPE = (
    "Something in backward computes in float32 (`.float()`, torch.empty without dtype, a float32 constant): "
    "keep the dtype of grad_output."
)

WITHIN_TOLERANCE = (
    "A truncated constant or a lower precision inside backward; within the tolerance, so no failure."
)

NOT_FINITE = (
    "Look for 0/0, log(0) or sqrt(0) in backward at these inputs; mask with torch.where on the "
    "denominator, not on the result."
)

FEWEST_FINITE = 3
"""Entries on the other side that a condition on the values must tell apart."""

TINY = torch.finfo(torch.float64).tiny
"""The least by which anything is divided."""

NEARLY = 1e-4
"""Relative error of a value that is right but for a lower precision inside."""


def describe_block(
    sample: Sample, comparison: Comparison, position: int, output: Block, name: str, source: Block
) -> Finding | None:
    """The one finding that says best what is wrong with a block; None where nothing is."""
    masks = (comparison.nonfinite, comparison.wrong, comparison.imprecise)
    nonfinite, wrong, imprecise = (part(m, output, source) for m in masks)
    marked = next((mask for mask in (nonfinite, wrong, imprecise) if mask.any()), None)
    if marked is None:
        return None
    several = sample.outputs_returned > 1
    label = f"y{position}" if several else "y"
    gradient = f"the gradient{f' of output {position}' if several else ''} with respect to `{name}`"
    finding, entries = _located(sample, comparison, (position, name), output, source, marked)
    worst, how_many = entries.worst[0], count_of(entries.wrong, entries.checked)
    place = f"d {indexed(label, worst.output)} / d {indexed(name, worst.input or ())}"
    derivative = f"{place} is {number(worst.expected)}"
    if nonfinite.any():
        at_kink = part(comparison.kinks, output, source)[nonfinite].any()
        has = "has finite slopes on either side" if at_kink else f"has a finite derivative: {derivative}"
        where = where_nonfinite(sample, name, nonfinite)
        said = f"{gradient} is NaN or infinite at {how_many}, where forward {has}"
        hint, cause = f"{where} {NOT_FINITE}".strip(), "branch" if where else ""
        return replace(finding, code="GV108", message=said, hint=hint, cause=cause)
    analytical, numerical = (part(m, output, source) for m in (comparison.analytical, comparison.numerical))
    whole = output.chosen is None and is_declared(sample.point, sample.draw)
    if wrong.any() and not analytical.any() and whole:
        return _missing(sample, finding, f" through output {position}" if several else "", derivative)
    is_short = is_float32(analytical, numerical, part(comparison.bound, output, source))
    if (is_short and _near(analytical, numerical)[marked].all()) or not wrong.any():
        return _imprecise(finding, gradient, (analytical, numerical), marked, is_short=bool(is_short))
    said = f"{gradient} is wrong at {how_many} of the Jacobian, by up to {largest_difference(entries)}"
    if output.chosen is not None:
        said += "; its Jacobian is large, these are the entries that probes led to"
    return replace(finding, message=said)


def _located(
    sample: Sample,
    comparison: Comparison,
    names: tuple[int, str],
    output: Block,
    source: Block,
    marked: Tensor,
) -> tuple[Finding, Entries]:
    """A finding on the marked entries of a block, without a message; `names` are those of its sides."""
    position, name = names
    compared = (comparison.analytical, comparison.numerical, comparison.bound, comparison.kinks)
    analytical, numerical, bound, kinks = (part(m, output, source) for m in compared)
    entries = entries_of(analytical, numerical, bound, marked, output, source)
    largest = (analytical - numerical).abs()[marked].max() / bound[marked].max().clamp_min(TINY)
    judged = bound.isfinite() & ~kinks
    labels = (f"y{position}" if sample.outputs_returned > 1 else "y", name)
    finding = sample.finding(
        "GV101",
        "",
        output=position,
        input=name,
        entries=entries,
        map=map_of((analytical, numerical), marked, judged, output, source, labels),
        badness=largest.nan_to_num(torch.finfo(torch.float64).max).item(),
    )
    return finding, entries


def _imprecise(
    finding: Finding, gradient: str, pair: tuple[Tensor, Tensor], marked: Tensor, *, is_short: bool
) -> Finding:
    """GV110: an error where the gradient has float32's digits, else a warning."""
    entries = finding.entries
    assert entries is not None  # noqa: S101 - `_located` gave it some
    if is_short and _near(*pair)[marked].all():
        worst = entries.worst[0]
        off = number(abs(worst.actual - worst.expected) / max(abs(worst.expected), TINY))
        said = f"{gradient} has float32 precision only: off by {off} of its value"
        made = replace(finding, code="GV110", message=said, hint=KEEP_THE_DTYPE)
        return replace(made, severity=Severity.ERROR, cause="float32-inside")
    off = number(((pair[0] - pair[1]).abs() / pair[1].abs().clamp_min(TINY))[marked].max().item())
    places = count_of(entries.wrong, entries.checked)
    said = f"{gradient} is slightly off at {places}: by up to {off} of its value, more than rounding explains"
    made = replace(finding, code="GV110", message=said, hint=WITHIN_TOLERANCE)
    return replace(made, severity=Severity.WARNING)


def is_float32(values: Tensor, expected: Tensor, bound: Tensor | None = None) -> bool:
    """Whether values carry float32 precision only.

    Each survives a cast to it and is near what was expected, which does not survive one. `bound` is how far
    what was expected may be off: a measured 1 may be anything near 1.
    """
    same = values.to(torch.float32).to(torch.float64) == values
    lost = (expected.to(torch.float32).to(torch.float64) - expected).abs()
    informative = (values != 0) & (lost > (torch.zeros_like(lost) if bound is None else bound))
    return int(informative.sum()) >= 4 and bool((same & _near(values, expected))[informative].all())


def _near(values: Tensor, expected: Tensor) -> Tensor:
    return (values - expected).abs() <= NEARLY * expected.abs()


def _missing(sample: Sample, finding: Finding, through_output: str, derivative: str) -> Finding:
    reader, name = sample.subject.reader, finding.input or ""
    is_none = reader is not None and reader.returned_none.get(sample.position_of(name), False)
    what = "backward returns None for" if is_none else "the gradient is zero everywhere for"
    return replace(
        finding,
        code="GV107",
        message=f"{what} `{name}`{through_output}, but the function depends on it: {derivative}",
        hint=f"Return the gradient of `{name}`. If none is intended, say so in the spec: "
        f"`{name}: {{..., requires_grad: false}}`.",
    )


def rounded(sample: Sample, name: str) -> Finding:
    """GV110 for a gradient that is rounded to float32 though the Jacobian's entries do not show it."""
    return sample.finding(
        "GV110",
        f"the gradient with respect to `{name}` has float32 precision only: it is rounded for every "
        "grad_output that needs more digits",
        severity=Severity.ERROR,
        cause="float32-inside",
        hint=KEEP_THE_DTYPE,
        input=name,
    )


def where_nonfinite(sample: Sample, name: str, nonfinite: Tensor) -> str:
    """Which values of the input the columns that are not finite have, and no other: one value, or all large.

    `nonfinite` is the block's mask, m × n. Empty where no such condition tells them apart.
    """
    place = sample.problem.input_names.index(name)
    block = sample.inputs.blocks[place]
    columns = nonfinite.any(dim=0)
    values = sample.problem.primals[place].detach().reshape(-1)
    if block.is_complex or block.chosen is not None or values.numel() != columns.numel():
        return ""
    bad, good = values[columns].to("cpu", torch.float64), values[~columns].to("cpu", torch.float64)
    if good.numel() < FEWEST_FINITE:
        return ""
    if bool((bad == bad[0]).all()) and not bool((good == bad[0]).any()):
        return f"It is NaN or infinite exactly where `{name}` is {number(bad[0].item())}."
    low, high = good.abs().max().item(), bad.abs().min().item()
    if bad.numel() >= FEWEST_FINITE and high > low:
        large, small = number(high), number(low)
        return f"It is NaN or infinite where |{name}| is at least {large}, and finite up to {small}."
    return ""
